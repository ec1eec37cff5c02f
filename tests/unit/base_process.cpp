#include "interpose/base/process.h"

#include <unistd.h>

#include <cstdlib>

#include "catch.h"

using stalloc::expand_path;

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
