// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/process.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "catch.h"
#include "child.h"

using stalloc::absolute_path;
using stalloc::expand_path;
using stalloc::test::holds_in_child;

namespace {

struct RankVariable {
  explicit RankVariable(const char* value) { setenv("RANK", value, 1); }
  ~RankVariable() { unsetenv("RANK"); }
};

}  // namespace

TEST_CASE("templates name rank, process and host") {
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) unsetenv(name);
  CHECK(expand_path("trace.fb") == "trace.fb");
  CHECK(expand_path("t%r.fb") == "t0.fb");
  CHECK(expand_path("%p") == std::to_string(getpid()));
  CHECK(expand_path("%h.fb") == stalloc::host_name() + ".fb");
  CHECK(expand_path("100%%.fb") == "100%.fb");
  CHECK(expand_path("%x%") == "%x%");
}

TEST_CASE("ranks never name one file") {
  const RankVariable rank("13");
  CHECK(expand_path("trace.fb") == "trace.13.fb");
  CHECK(expand_path("runs.d/trace") == "runs.d/trace.13");
  CHECK(expand_path("/a/.trace") == "/a/.trace.13");
  CHECK(expand_path("t-%r.fb") == "t-13.fb");
  CHECK(expand_path("t-%p.fb") == "t-" + std::to_string(getpid()) + ".fb");
  CHECK(expand_path("%h.fb") == stalloc::host_name() + ".13.fb");
  CHECK(expand_path("").empty());
}

TEST_CASE("a rank that is no number is no rank") {
  const RankVariable rank("../../etc");
  CHECK(stalloc::launcher_rank().empty());
  CHECK(expand_path("trace.fb") == "trace.fb");
}

TEST_CASE("the start is remembered, whatever the program does to its variables later") {
  CHECK(holds_in_child([] {
    setenv("SLURM_PROCID", "4", 1);
    stalloc::remember_start();
    setenv("SLURM_PROCID", "overwritten", 1);
    return stalloc::launcher_rank() == "4";
  }));
  CHECK(holds_in_child([] {
    setenv("SLURM_PROCID", "4", 1);
    stalloc::remember_start();
    setenv("RANK", "7", 1);  // a program that gives ranks to its own processes
    return stalloc::launcher_rank() == "7";
  }));
}

TEST_CASE("relative paths are seen from the folder in which the process was started") {
  CHECK(absolute_path("trace.fb") == "trace.fb");  // not remembered
  CHECK(holds_in_child([] {
    const std::string folder = std::filesystem::current_path();
    stalloc::remember_start();
    if (chdir("/") != 0) return false;
    return absolute_path("a/trace.fb") == folder + "/a/trace.fb" && absolute_path("/trace.fb") == "/trace.fb" &&
           absolute_path("").empty();
  }));
  CHECK(holds_in_child([] {
    if (chdir("/") != 0) return false;
    stalloc::remember_start();
    return absolute_path("trace.fb") == "/trace.fb";
  }));
}

TEST_CASE("arguments are remembered, joined by spaces") {
  CHECK(holds_in_child([] {
    const char* arguments[] = {"python", "train.py", "--name=a b"};
    stalloc::remember_arguments(3, arguments);
    return stalloc::command_line() == "python train.py --name=a b";
  }));
  CHECK(holds_in_child([] {
    const std::string many(1 << 20, 'x');
    const char* arguments[] = {"cc", many.c_str(), "last"};
    stalloc::remember_arguments(3, arguments);
    return stalloc::command_line() == "cc " + many.substr(0, (64 << 10) - 3);
  }));
  CHECK(stalloc::command_line().find("test_base") != std::string::npos);  // not remembered
}
