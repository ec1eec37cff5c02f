#include "interpose/record/recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "catch.h"

using stalloc::record::Call;
using stalloc::record::Recorder;
using stalloc::trace::EventKind;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() : path(fs::temp_directory_path() / ("stalloc-record-" + std::to_string(getpid()))) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

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

Call alloc(std::uint64_t address, std::uint64_t size, CUstream stream = nullptr) {
  Call call;
  call.kind = EventKind::AllocAsync;
  call.address = address;
  call.size = size;
  call.stream = stalloc::serve::make_stream_key(stream, false);
  call.caller = reinterpret_cast<const void*>(&describe);
  return call;
}

CUstream stream_handle(std::uintptr_t value) { return reinterpret_cast<CUstream>(value); }

}  // namespace

TEST_CASE("events come back as they were recorded") {
  const Folder folder;
  const Settings settings(folder.path / "trace.fb");
  Recorder recorder(settings.options, describe);
  for (std::uint64_t i = 1; i <= 10; ++i) recorder.record(alloc(i << 20, i * 100, stream_handle(i % 3 * 0x1000)));
  Call failed = alloc(0, 7);
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
  const Settings settings(folder.path / "trace.fb");
  Recorder recorder(settings.options, describe);
  for (std::uint64_t i = 1; i <= 10; ++i) recorder.record(alloc(i << 20, 512));
  const auto trace = stalloc::trace::read_trace(settings.trace);  // never closed
  REQUIRE(trace.error.empty());
  CHECK_FALSE(trace.value.closed);
  CHECK(trace.value.events.size() == 8);
}

TEST_CASE("nothing recorded leaves no file") {
  const Folder folder;
  const Settings settings(folder.path / "trace.fb");
  Recorder recorder(settings.options, describe);
  recorder.close();
  CHECK_FALSE(fs::exists(settings.trace));
}

TEST_CASE("a destroyed stream's handle given to a new stream is a new stream") {
  const Folder folder;
  const Settings settings(folder.path / "trace.fb");
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
  Settings settings(folder.path / "trace.fb", 64);
  // libunwind locks a mutex when a thread ends, after ThreadSanitizer has forgotten the thread.
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

TEST_CASE("a file that cannot be written stops the recording and nothing else") {
  const Settings full("/dev/full");
  Recorder recorder(full.options, describe);
  for (std::uint64_t i = 1; i <= 100; ++i) recorder.record(alloc(i << 20, 512));
  recorder.close();
  const Settings nowhere("/nonexistent/folder/trace.fb");
  Recorder other(nowhere.options, describe);
  for (std::uint64_t i = 1; i <= 100; ++i) other.record(alloc(i << 20, 512));
  other.close();
  CHECK_FALSE(fs::exists("/nonexistent"));
}

TEST_CASE("a file that another process records into is left alone") {
  const Folder folder;
  const Settings settings(folder.path / "trace.fb");
  std::ofstream(settings.trace) << "theirs";
  const int theirs = open(settings.trace.c_str(), O_RDONLY);
  REQUIRE(flock(theirs, LOCK_EX) == 0);
  Recorder recorder(settings.options, describe);
  recorder.record(alloc(1 << 20, 512));
  recorder.close();
  close(theirs);
  std::string text;
  std::ifstream(settings.trace) >> text;
  CHECK(text == "theirs");
  const auto ours = folder.path / ("trace." + std::to_string(getpid()) + ".fb");
  CHECK(stalloc::trace::read_trace(ours.string()).value.events.size() == 1);
}
