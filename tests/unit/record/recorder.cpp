// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/recorder.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "catch.h"
#include "child.h"
#include "folder.h"
#include "interpose/base/log.h"
#include "interpose/record/call_stack.h"

using stalloc::record::Recorder;
using stalloc::record::TracedCall;
using stalloc::test::Folder;
using stalloc::test::holds_in_child;
using stalloc::trace::EventKind;
namespace fs = std::filesystem;

namespace {

stalloc::trace::Device describe(int device) { return {static_cast<std::uint32_t>(device), "Fake", 1 << 30, 2 << 20}; }

struct Settings {
  std::string trace;
  stalloc::Options options;
  explicit Settings(const fs::path& path, std::uint32_t chunk = 4) : trace(path.string()) {
    options.trace = trace;
    options.trace_chunk = chunk;
    options.trace_flush_ms = 1'000'000;
    options.stack_depth = 8;
    options.stacks = true;
  }
};

TracedCall alloc(std::uint64_t address, std::uint64_t size, CUstream stream = nullptr) {
  TracedCall call;
  call.kind = EventKind::AllocAsync;
  call.address = address;
  call.size = size;
  call.stream = stalloc::make_stream_key(stream, false);
  call.caller = reinterpret_cast<const void*>(&describe);
  return call;
}

// While an object lives, no file can be opened. For children. Nothing is logged any more, since formatting has virtual
// calls, for which UndefinedBehaviorSanitizer opens a pipe.
class NoDescriptors {
 public:
  NoDescriptors() {
    stalloc::log::set_level(stalloc::LogLevel::Silent);
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{STDERR_FILENO + 1, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

CUstream stream_handle(std::uintptr_t value) { return reinterpret_cast<CUstream>(value); }

}  // namespace

TEST_CASE("events come back as they were recorded") {
  const Folder folder;
  const Settings settings(folder.path() / "trace.fb");
  Recorder recorder(settings.options, describe);
  for (std::uint64_t i = 1; i <= 10; ++i) recorder.record(alloc(i << 20, i * 100, stream_handle(i % 3 * 0x1000)));
  TracedCall failed = alloc(0, 7);
  failed.failed = true;
  failed.device = 3;
  recorder.record(failed);
  recorder.close();

  const auto trace = stalloc::trace::read_trace(settings.trace);
  REQUIRE(trace.error.empty());
  CHECK(trace.value.closed);
  CHECK(trace.value.chunks == 3);
  REQUIRE(trace.value.events.size() == 11);
  CHECK(trace.value.process.pid == static_cast<std::uint32_t>(getpid()));
  REQUIRE(trace.value.devices.size() == 2);
  CHECK(trace.value.devices[1].ordinal == 3);
  for (std::uint64_t i = 1; i <= 10; ++i) {
    const auto& event = trace.value.events[i - 1];
    CHECK(event.address() == i << 20);
    CHECK(event.size() == i * 100);
    CHECK(event.stream() == std::array<std::uint32_t, 3>{0, 1, 2}[i % 3]);
    CHECK(event.flags() == 0);
    CHECK(event.module_() == 1);
  }
  CHECK(trace.value.events[10].flags() == static_cast<std::uint8_t>(stalloc::tracefb::EventFlags::Failed));
}

TEST_CASE("a process that dies leaves the chunks it had written") {
  const Folder folder;
  const Settings settings(folder.path() / "trace.fb");
  Recorder recorder(settings.options, describe);
  for (std::uint64_t i = 1; i <= 10; ++i) recorder.record(alloc(i << 20, 512));
  const auto trace = stalloc::trace::read_trace(settings.trace);  // never closed
  REQUIRE(trace.error.empty());
  CHECK_FALSE(trace.value.closed);
  CHECK(trace.value.events.size() == 8);
}

TEST_CASE("nothing recorded leaves no file") {
  const Folder folder;
  const Settings settings(folder.path() / "trace.fb");
  Recorder recorder(settings.options, describe);
  recorder.close();
  CHECK_FALSE(fs::exists(settings.trace));
}

TEST_CASE("at exit all calls together wait a second at most, and a trace that lacks one is not closed") {
  static std::atomic<bool> is_inside;
  static std::atomic<bool> may_go_on;
  is_inside = may_go_on = false;
  const Folder folder;
  Settings settings(folder.path() / "trace.fb", 1);
  settings.options.stacks = false;  // see "threads lose no event"
  Recorder recorder(settings.options, [](int device) {
    if (device == 1) {
      is_inside = true;
      while (!may_go_on) std::this_thread::yield();  // with the recorder's lock
    }
    return describe(device);
  });
  recorder.record(alloc(1 << 20, 512));
  std::thread other([&] {
    TracedCall call = alloc(2 << 20, 512);
    call.device = 1;
    recorder.record(call);
  });
  while (!is_inside) std::this_thread::yield();
  recorder.limit_waits();
  for (std::uint64_t i = 3; i < 1000; ++i) recorder.record(alloc(i << 20, 512));  // a quarter of an hour, a second each
  recorder.close();
  may_go_on = true;
  other.join();
  recorder.close();
  const auto trace = stalloc::trace::read_trace(settings.trace);
  REQUIRE(trace.error.empty());
  CHECK_FALSE(trace.value.closed);
  CHECK(trace.value.events.front().address() == 1 << 20);
}

TEST_CASE("a stream that is destroyed after the end does not wait for a thread that is stuck in an event") {
  static std::atomic<bool> is_inside;
  static std::atomic<bool> may_go_on;
  is_inside = may_go_on = false;
  const Folder folder;
  Settings settings(folder.path() / "trace.fb");
  settings.options.stacks = false;  // see "threads lose no event"
  Recorder recorder(settings.options, [](int device) {
    is_inside = true;
    while (!may_go_on) std::this_thread::yield();  // with the recorder's lock
    return describe(device);
  });
  std::thread stuck([&recorder] { recorder.record(alloc(1 << 20, 512)); });
  while (!is_inside) std::this_thread::yield();
  std::thread ending([&recorder] {
    recorder.limit_waits();
    recorder.close();
    recorder.stream_destroyed(stream_handle(0x5000));
    may_go_on = true;
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!may_go_on && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(may_go_on);
  may_go_on = true;
  stuck.join();
  ending.join();
}

TEST_CASE("a destroyed stream's handle given to a new stream is a new stream") {
  const Folder folder;
  const Settings settings(folder.path() / "trace.fb");
  Recorder recorder(settings.options, describe);
  recorder.record(alloc(1 << 20, 512, stream_handle(0x5000)));
  recorder.stream_destroyed(stream_handle(0x5000));
  recorder.record(alloc(2 << 20, 512, stream_handle(0x5000)));
  recorder.close();
  const auto trace = stalloc::trace::read_trace(settings.trace);
  REQUIRE(trace.value.events.size() == 2);
  CHECK(trace.value.events[0].stream() != trace.value.events[1].stream());
}

TEST_CASE("threads lose no event") {
  const Folder folder;
  Settings settings(folder.path() / "trace.fb", 64);
  // libunwind locks a mutex when a thread ends, after ThreadSanitizer has forgotten the thread: no stacks in threads.
  settings.options.stacks = false;
  Recorder recorder(settings.options, describe);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder, t] {
      for (std::uint64_t i = 0; i < 500; ++i) recorder.record(alloc((t << 40) + (i << 10), 512 + t));
    });
  }
  for (auto& thread : threads) thread.join();
  recorder.close();
  const auto trace = stalloc::trace::read_trace(settings.trace);
  REQUIRE(trace.error.empty());
  CHECK(trace.value.events.size() == 2000);
  std::map<std::uint32_t, std::uint64_t> by_thread;
  for (const auto& event : trace.value.events) ++by_thread[event.thread()];
  CHECK(by_thread.size() == 4);
}

TEST_CASE("a chunk ends early when its stacks are many") {
  if (!stalloc::record::call_stacks_available()) return;
  void* const plugin = dlopen(RECORD_PLUGIN, RTLD_NOW);  // frames of the recorder's own module are left out
  REQUIRE(plugin != nullptr);
  const auto call_in_all_ways =
      reinterpret_cast<void (*)(void (*)(void*), void*, int)>(dlsym(plugin, "call_in_all_ways"));
  REQUIRE(call_in_all_ways != nullptr);
  const Folder folder;
  Settings settings(folder.path() / "trace.fb", 1 << 20);
  settings.options.stack_depth = 64;
  Recorder recorder(settings.options, describe);
  constexpr int kDepth = 17;
  call_in_all_ways([](void* to) { static_cast<Recorder*>(to)->record(alloc(1 << 20, 512)); }, &recorder, kDepth);
  recorder.close();
  const auto trace = stalloc::trace::read_trace(settings.trace);
  REQUIRE(trace.error.empty());
  CHECK(trace.value.events.size() == 1 << kDepth);
  CHECK(trace.value.stacks.size() == 1 << kDepth);
  CHECK(trace.value.chunks > 1);
  dlclose(plugin);
}

TEST_CASE("events that cannot be written now are written later") {
  const Folder folder;
  const Settings settings(folder.path() / "trace.fb", 1);
  CHECK(holds_in_child([&settings] {
    Recorder recorder(settings.options, describe);
    std::uint64_t next = 0;
    const auto record = [&] { recorder.record(alloc(++next << 20, 512)); };
    for (int times = 0; times < 2; ++times) {
      {
        const NoDescriptors none;  // for the first chunk, and for later ones
        for (int i = 0; i < 3; ++i) record();
      }
      for (int i = 0; i < 3; ++i) record();
    }
    const NoDescriptors none;
    record();
    recorder.close();  // the end: what cannot be written now is lost, and nothing else
    return true;
  }));
  const auto trace = stalloc::trace::read_trace(settings.trace);
  REQUIRE(trace.error.empty());
  CHECK_FALSE(trace.value.closed);
  REQUIRE(trace.value.events.size() == 12);
  for (std::uint64_t i = 1; i <= 12; ++i) CHECK(trace.value.events[i - 1].address() == i << 20);
}

TEST_CASE("events that can never be written end the recording before they take much memory") {
  const Folder folder;
  Settings settings(folder.path() / "trace.fb", 8192);
  settings.options.stacks = false;
  CHECK(holds_in_child([&settings] {
    Recorder recorder(settings.options, describe);
    {
      const NoDescriptors none;
      for (std::uint64_t i = 0; i <= stalloc::record::kMostUnwrittenBytes / sizeof(stalloc::trace::Event) + 8192; ++i) {
        recorder.record(alloc(i << 10, 512));
      }
    }
    recorder.close();
    return !fs::exists(settings.trace);
  }));
}

TEST_CASE("a child that has its parent's recorder leaves the parent's trace alone") {
  const Folder folder;
  const Settings settings(folder.path() / "trace.fb");
  Recorder recorder(settings.options, describe);
  for (std::uint64_t i = 1; i <= 5; ++i) recorder.record(alloc(i << 20, 512));  // one in memory
  const auto bytes = fs::file_size(settings.trace);
  CHECK(holds_in_child([&] {
    recorder.close();
    for (std::uint64_t i = 1; i <= 5; ++i) recorder.record(alloc(i << 30, 512));
    recorder.close();
    return fs::file_size(settings.trace) == bytes;
  }));
  recorder.record(alloc(6 << 20, 512));
  recorder.close();
  const auto trace = stalloc::trace::read_trace(settings.trace);
  REQUIRE(trace.error.empty());
  CHECK(trace.value.closed);
  CHECK(trace.value.events.size() == 6);
}

TEST_CASE("a recording changes no errno") {
  const Folder folder;
  const Settings settings(folder.path() / "trace.fb", 1);
  std::ofstream(settings.trace) << "theirs";  // so that the trace gets another name, after an error
  Recorder recorder(settings.options, describe);
  errno = 7;
  recorder.record(alloc(1 << 20, 512));
  const int after_event = errno;
  recorder.close();
  CHECK(after_event == 7);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("a file that cannot be made stops the recording and nothing else") {
  for (const char* path : {"/nonexistent/folder/trace.fb", "/dev/full"}) {
    const Settings settings(path);
    Recorder recorder(settings.options, describe);
    for (std::uint64_t i = 1; i <= 100; ++i) recorder.record(alloc(i << 20, 512));
    recorder.close();
  }
  CHECK_FALSE(fs::exists("/nonexistent"));
}

TEST_CASE("a trace that reaches its largest size is whole, and no larger") {
  for (const std::uint64_t limit : {4'000, 10'000, 10'001, 11'111}) {
    const Folder folder;
    Settings settings(folder.path() / "trace.fb");
    settings.options.trace_limit = limit;
    Recorder recorder(settings.options, describe);
    for (std::uint64_t i = 1; i <= 1000; ++i) recorder.record(alloc(i << 20, 512));
    recorder.close();
    const std::uint64_t bytes = fs::file_size(settings.trace);
    CHECK(bytes <= limit);
    CHECK(bytes > limit - 2000);
    const auto trace = stalloc::trace::read_trace(settings.trace);
    REQUIRE(trace.error.empty());
    CHECK(trace.value.closed);
    CHECK(trace.value.limit_reached);
    REQUIRE(trace.value.events.size() > 4);
    REQUIRE(trace.value.events.size() < 1000);
    CHECK(trace.value.events.back().address() == trace.value.events.size() << 20);
  }
}

TEST_CASE("a trace below its largest size ends in order") {
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    const Folder folder;
    Settings settings(folder.path() / "trace.fb");
    settings.options.trace_limit = limit;
    Recorder recorder(settings.options, describe);
    for (std::uint64_t i = 1; i <= 1000; ++i) recorder.record(alloc(i << 20, 512));
    recorder.close();
    const auto trace = stalloc::trace::read_trace(settings.trace);
    CHECK(trace.value.events.size() == 1000);
    CHECK(trace.value.closed);
    CHECK_FALSE(trace.value.limit_reached);
  }
}

namespace {

std::atomic<int> describing{0};
std::atomic<bool> may_describe{false};

stalloc::trace::Device describe_slowly(int device) {
  ++describing;
  while (!may_describe) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return describe(device);
}

}  // namespace

TEST_CASE("closing does not wait for good for a thread that is stuck in an event") {
  const Folder folder;
  Settings settings(folder.path() / "trace.fb");
  settings.options.stacks = false;  // see "threads lose no event"
  Recorder recorder(settings.options, describe_slowly);
  std::thread stuck([&recorder] { recorder.record(alloc(1 << 20, 512)); });
  while (describing == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  recorder.close();
  CHECK_FALSE(fs::exists(settings.trace));
  may_describe = true;
  stuck.join();
  recorder.close();
  CHECK(stalloc::trace::read_trace(settings.trace).value.events.size() == 1);
}
