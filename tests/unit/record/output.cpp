// SPDX-License-Identifier: Apache-2.0
// The trace file: the recorder writes no other file, the trace is whole up to its last chunk, and the program notices
// nothing.
#include "interpose/record/trace_output.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "catch.h"
#include "child.h"
#include "folder.h"

using stalloc::record::TraceOutput;
using stalloc::test::Folder;
using stalloc::test::holds_in_child;
namespace fs = std::filesystem;

namespace {

std::vector<std::uint8_t> chunk(std::size_t bytes, std::uint8_t first = 1) {
  std::vector<std::uint8_t> data(bytes);
  std::iota(data.begin(), data.end(), first);
  return data;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const std::string& path, const char* text) { std::ofstream(path) << text; }

std::string with_process(const Folder& folder, const std::string& rest) {
  return (folder.path() / ("trace." + std::to_string(getpid()) + rest)).string();
}

bool limit_file_size(rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

// For children: a file system of `size` under `folder`, which goes with the process.
bool mount_small_disk(const fs::path& folder, const std::string& size) {
  return (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
}

bool is_pending(int signal) {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, signal) == 1;
}

}  // namespace

TEST_CASE("chunks stand one behind the other, and no descriptor is held between them") {
  const Folder folder;
  TraceOutput output(folder / "trace.fb");
  const auto descriptors = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  const auto before = descriptors();
  std::string expected;
  for (std::uint8_t i = 0; i < 5; ++i) {
    const auto bytes = chunk(1000, i);
    CHECK(output.append(bytes).empty());
    expected.append(bytes.begin(), bytes.end());
    CHECK(descriptors() == before);
  }
  CHECK(text_of(output.path()) == expected);
  CHECK(output.bytes() == expected.size());
  CHECK(output.taken().empty());
}

TEST_CASE("a file that is there is left alone, also behind a link") {
  const Folder folder;
  const std::string theirs = folder / "theirs";
  const std::string wanted = folder / "trace.fb";
  write_text(theirs, "theirs");
  const std::function<void()> ways[] = {
      [&] { write_text(wanted, "theirs"); },
      [&] { fs::create_symlink(theirs, wanted); },
      [&] { fs::create_hard_link(theirs, wanted); },
      [&] { fs::create_symlink(folder / "nowhere", wanted); },
  };
  for (const auto& make : ways) {
    make();
    TraceOutput output(wanted);
    CHECK(output.append(chunk(10)).empty());
    CHECK(output.path() == with_process(folder, ".fb"));
    CHECK(output.taken() == wanted);
    CHECK(fs::file_size(output.path()) == 10);
    CHECK(text_of(theirs) == "theirs");
    CHECK_FALSE(fs::exists(folder / "nowhere"));
    fs::remove(wanted);
    fs::remove(output.path());
  }
}

TEST_CASE("when the name with the process id is taken too, a number follows") {
  const Folder folder;
  for (const char* rest : {".fb", ".2.fb", ".3.fb"}) write_text(with_process(folder, rest), "theirs");
  write_text(folder / "trace.fb", "theirs");
  TraceOutput output(folder / "trace.fb");
  CHECK(output.append(chunk(10)).empty());
  CHECK(output.path() == with_process(folder, ".4.fb"));
}

TEST_CASE("two processes that begin at once have a file each") {
  const Folder folder;
  TraceOutput one(folder / "trace.fb");
  TraceOutput other(folder / "trace.fb");
  for (std::uint8_t i = 0; i < 3; ++i) {
    CHECK(one.append(chunk(10, 1)).empty());
    CHECK(other.append(chunk(10, 2)).empty());
  }
  CHECK(one.path() != other.path());
  CHECK(text_of(one.path()).size() == 30);
  CHECK(text_of(other.path()).size() == 30);
}

TEST_CASE("pipes, devices and folders are not written to, nor waited for") {
  const Folder folder;
  const std::string fifo = folder / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  fs::create_symlink(fifo, folder / "link");
  fs::create_directory(folder / "folder");
  CHECK(holds_in_child([&] {
    for (const auto& [path, kind] : {std::pair<std::string, std::string>{fifo, "a pipe"},
                                     {folder / "link", "a pipe"},
                                     {folder / "folder", "a folder"},
                                     {"/dev/null", "a device"}}) {
      TraceOutput output(path);
      if (output.append(chunk(10)) != path + " is " + kind + ", and a trace is written to a regular file only") {
        return false;
      }
    }
    return true;
  }));
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 3);
}

TEST_CASE("a file that is no more as it was left is not written to") {
  const Folder folder;
  const std::string path = folder / "trace.fb";
  const std::function<void()> ways[] = {
      [&] { std::ofstream(path, std::ios::app) << "more"; },
      [&] { fs::resize_file(path, 4); },
      [&] {  // another one of the same size
        fs::rename(path, folder / "moved");
        write_text(path, "0123456789");
      },
      [&] {
        fs::rename(path, folder / "moved");
        fs::create_symlink(folder / "moved", path);
      },
      [&] {
        fs::remove(path);
        if (mkfifo(path.c_str(), 0600) != 0) FAIL("mkfifo");
      },
      [&] { fs::remove(path); },
  };
  for (const auto& change : ways) {
    TraceOutput output(path);
    REQUIRE(output.append(chunk(10)).empty());
    change();
    const std::string before = fs::is_regular_file(path) ? text_of(path) : "";
    CHECK_FALSE(output.append(chunk(10)).empty());
    if (fs::is_regular_file(path)) CHECK(text_of(path) == before);
    fs::remove(path);
    fs::remove(folder / "moved");
  }
}

TEST_CASE("a file that may not grow ends with a whole chunk, and raises nothing") {
  const Folder folder;
  const std::string path = folder / "trace.fb";
  CHECK(holds_in_child([&] {
    TraceOutput output(path);
    if (!limit_file_size(2500)) return false;
    for (int i = 0; i < 2; ++i) {
      if (!output.append(chunk(1000)).empty()) return false;
    }
    return output.append(chunk(1000)) == path + ": File too large" && !is_pending(SIGXFSZ);
  }));
  CHECK(fs::file_size(path) == 2000);
}

TEST_CASE("a chunk may be tried again where more descriptors may come, and not where a limit stays") {
  const Folder folder;
  CHECK(holds_in_child([&] {
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{STDERR_FILENO + 1, before.rlim_max};
    TraceOutput output(folder / "trace.fb");
    for (int i = 0; i < 2; ++i) {
      setrlimit(RLIMIT_NOFILE, &none);
      if (output.append(chunk(1000)).empty() || !output.may_retry()) return false;
      setrlimit(RLIMIT_NOFILE, &before);
      if (!output.append(chunk(1000)).empty() || output.may_retry()) return false;
    }
    return limit_file_size(2500) && !output.append(chunk(1000)).empty() && !output.may_retry();
  }));
  CHECK(fs::file_size(folder / "trace.fb") == 2000);
}

TEST_CASE("chunks for which a disk has no room may be tried again when it has") {
  const Folder folder;
  const auto has_small_disk = [&folder] { return mount_small_disk(folder.path(), "64k"); };
  if (!holds_in_child(has_small_disk)) {
    WARN("this user may mount no file system");
    return;
  }
  CHECK(holds_in_child([&] {
    if (!has_small_disk()) return false;
    TraceOutput output(folder / "trace.fb");
    if (output.append(chunk(100'000)).empty() || !output.may_retry() || !fs::is_empty(folder.path())) return false;
    if (!output.append(chunk(20'000)).empty()) return false;
    if (output.append(chunk(100'000)).empty() || !output.may_retry()) return false;
    return output.append(chunk(20'000)).empty() && fs::file_size(output.path()) == 40'000;
  }));
}

TEST_CASE("a file whose first chunk does not fit goes") {
  const Folder folder;
  CHECK(holds_in_child([&] {
    TraceOutput output(folder / "trace.fb");
    return limit_file_size(500) && !output.append(chunk(1000)).empty();
  }));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a signal that the program had pending stays pending") {
  const Folder folder;
  CHECK(holds_in_child([&] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    raise(SIGXFSZ);
    TraceOutput output(folder / "trace.fb");
    if (!limit_file_size(500) || output.append(chunk(1000)).empty()) return false;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return is_pending(SIGXFSZ) && sigismember(&mask, SIGXFSZ) == 1 && sigismember(&mask, SIGPIPE) == 0;
  }));
}

TEST_CASE("a thread is not cancelled in the middle of a chunk") {
  const Folder folder;
  TraceOutput output(folder / "trace.fb");
  std::array<std::vector<std::uint8_t>, 2> chunks = {chunk(1000), chunk(1000)};
  struct Work {
    TraceOutput* output;
    std::array<std::vector<std::uint8_t>, 2>* chunks;
    bool written = false;
  } work{&output, &chunks};
  const auto run = [](void* argument) -> void* {
    auto& todo = *static_cast<Work*>(argument);
    pthread_cancel(pthread_self());  // takes effect at the next cancellation point
    bool written = true;
    for (const auto& bytes : *todo.chunks) written = todo.output->append(bytes).empty() && written;
    todo.written = written;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);  // sanitizers do not survive it
    return nullptr;
  };
  pthread_t thread{};
  REQUIRE(pthread_create(&thread, nullptr, run, &work) == 0);
  void* result = nullptr;
  REQUIRE(pthread_join(thread, &result) == 0);
  CHECK(result == nullptr);
  CHECK(work.written);
  CHECK(fs::file_size(output.path()) == 2000);
}
