// SPDX-License-Identifier: Apache-2.0
// Memory that is freed while work on it is pending: no other data may be written there before that work is done.
#include <array>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/conformance/capture.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kLargestLate = 10 * kMiB;
constexpr std::array<std::size_t, 4> kLateSizes{4096, kMiB + 512, kPage, kLargestLate};
constexpr int kNobodyWaits = 10'000;  // milliseconds: a gate that stays shut this long shows that a call waited for it
constexpr int kMayWait = 150;         // for calls in which a driver may wait for the device

// Tries with a reader behind a gate, and with others that may get the memory that it reads.
class Late {
 public:
  Late(const Machine& machine, Report& report) : machine_(machine), report_(report), host_(machine, 4 * kLargestLate) {}

  // Memory is read and freed on `reader`, and wanted on `writer`.
  void try_streams(CUstream reader, CUstream writer, std::size_t bytes, const std::string& who) {
    const CUdeviceptr early = machine_.allocate(bytes, reader);
    machine_.fill(early, bytes, kEarly, reader);
    Gate gate(machine_, reader, kNobodyWaits);
    machine_.read(host(0), early, bytes, reader);
    machine_.free(early, reader);
    take_three(writer, bytes);
    gate.open();
    finish(reader, writer, bytes, who);
    report_.expect(!gate.timed_out(), "a stream-ordered request waited on the host for another stream: " + who);
  }

  // Memory is read and freed on `reader`, and wanted on `writer`, which waits for an event that does not stand behind
  // the free. `record` records the event; it is called before the gate, and again between the free and the wait.
  template <class Record>
  void try_event(CUstream reader, CUstream writer, std::size_t bytes, const std::string& who, Record record) {
    const CUdeviceptr early = machine_.allocate(bytes, reader);
    machine_.fill(early, bytes, kEarly, reader);
    const CUevent event = make_event();
    record(event, false);
    Gate gate(machine_, reader, kNobodyWaits);
    machine_.read(host(0), early, bytes, reader);
    machine_.free(early, reader);
    record(event, true);
    machine_.must(machine_.cuda.cuStreamWaitEvent(writer, event, 0), "cuStreamWaitEvent");
    take_three(writer, bytes);
    gate.open();
    machine_.wait(reader);
    finish(reader, writer, bytes, who);
    machine_.must(machine_.cuda.cuEventDestroy(event), "cuEventDestroy");
  }

  // Memory is read on the legacy stream and freed on a blocking one, which is ordered behind the legacy stream although
  // it has no work itself.
  void try_idle_stream(CUstream blocking, CUstream writer, std::size_t bytes) {
    const CUdeviceptr early = machine_.allocate(bytes, CU_STREAM_LEGACY);
    machine_.fill(early, bytes, kEarly, CU_STREAM_LEGACY);
    machine_.wait(blocking);
    Gate gate(machine_, CU_STREAM_LEGACY, kNobodyWaits);
    machine_.read(host(0), early, bytes, CU_STREAM_LEGACY);
    machine_.free(early, blocking);
    machine_.cuda.cuStreamQuery(blocking);
    take_three(writer, bytes);
    gate.open();
    finish(CU_STREAM_LEGACY, writer, bytes, "freed on a blocking stream");
  }

  // The same, and the blocking stream is destroyed before the memory is wanted.
  void try_destroyed_idle_stream(CUstream writer, std::size_t bytes) {
    const CUstream blocking = machine_.make_stream(CU_STREAM_DEFAULT);
    const CUdeviceptr early = machine_.allocate(bytes, blocking);
    machine_.wait(blocking);
    machine_.fill(early, bytes, kEarly, CU_STREAM_LEGACY);
    machine_.wait(CU_STREAM_LEGACY);
    Gate gate(machine_, CU_STREAM_LEGACY, kMayWait);
    machine_.read(host(0), early, bytes, CU_STREAM_LEGACY);
    machine_.free(early, blocking);
    machine_.destroy(blocking);
    take_three(writer, bytes);
    gate.open();
    finish(CU_STREAM_LEGACY, writer, bytes, "freed on a blocking stream that was destroyed");
  }

  // Memory is read on the legacy stream, and freed and allocated again on a blocking one. The program uses it on a
  // third stream once it finds the blocking stream idle.
  void try_polled_stream(CUstream blocking, CUstream writer, std::size_t bytes) {
    const CUdeviceptr early = machine_.allocate(bytes, blocking);
    machine_.wait(blocking);
    machine_.fill(early, bytes, kEarly, CU_STREAM_LEGACY);
    machine_.wait(CU_STREAM_LEGACY);
    Gate gate(machine_, CU_STREAM_LEGACY, kMayWait);
    machine_.read(host(0), early, bytes, CU_STREAM_LEGACY);
    machine_.free(early, blocking);
    const CUdeviceptr later = machine_.allocate(bytes, blocking);
    const bool idle = machine_.cuda.cuStreamQuery(blocking) == CUDA_SUCCESS;
    if (idle) {
      machine_.fill(later, bytes, kLater, writer);
      machine_.wait(writer);
    }
    gate.open();
    machine_.wait(CU_STREAM_LEGACY);
    report_.expect(holds(host(0), bytes, kEarly), "a late reader saw what was allocated on an idle blocking stream");
    report_.fact("a free on a blocking stream is work that waits for the legacy stream", idle ? "no" : "yes");
    machine_.free(later, blocking);
    machine_.wait(blocking);
  }

  // Memory is read and freed on `reader`, and wanted on `writer`, which the program itself ordered behind that.
  void try_ordered(CUstream reader, CUstream between, CUstream writer, std::size_t bytes) {
    const CUdeviceptr early = machine_.allocate(bytes, reader);
    machine_.fill(early, bytes, kEarly, reader);
    Gate gate(machine_, reader, kNobodyWaits);
    machine_.read(host(0), early, bytes, reader);
    machine_.free(early, reader);
    machine_.order(reader, between);
    machine_.order(between, writer);
    take_three(writer, bytes);
    gate.open();
    finish(reader, writer, bytes, "ordered by the program");
  }

  // Memory is used on `reader`, freed on `owner` behind that, and wanted on `writer`.
  void try_chain(CUstream owner, CUstream reader, CUstream writer, std::size_t bytes) {
    const CUdeviceptr early = machine_.allocate(bytes, owner);
    machine_.fill(early, bytes, kEarly, owner);
    machine_.order(owner, reader);
    Gate gate(machine_, reader, kNobodyWaits);
    machine_.read(host(0), early, bytes, reader);
    machine_.order(reader, owner);
    machine_.free(early, owner);
    take_three(writer, bytes);
    gate.open();
    machine_.wait(owner);
    finish(reader, writer, bytes, "freed on a third stream");
  }

  // The stream that freed the memory is destroyed while its work is pending.
  void try_destroyed(CUstream writer, std::size_t bytes) {
    const CUstream reader = machine_.make_stream();
    const CUstream last = machine_.make_stream();  // ordered behind the reader
    const CUdeviceptr early = machine_.allocate(bytes, reader);
    machine_.fill(early, bytes, kEarly, reader);
    Gate gate(machine_, reader, kNobodyWaits);
    machine_.read(host(0), early, bytes, reader);
    machine_.free(early, reader);
    machine_.order(reader, last);
    machine_.destroy(reader);
    const CUstream heir = machine_.make_stream();  // may get the reader's handle
    take_three(heir, bytes);
    gate.open();
    finish(last, heir, bytes, "destroyed stream, heir");
    take_three(writer, bytes);
    finish(last, writer, bytes, "destroyed stream, other");
    machine_.destroy(last);
    machine_.destroy(heir);
  }

  // Memory of cuMemAlloc, which may be used on any stream at once.
  void try_plain_writer(CUstream reader, CUstream writer, std::size_t bytes) {
    const CUdeviceptr early = machine_.allocate(bytes, reader);
    machine_.fill(early, bytes, kEarly, reader);
    Gate gate(machine_, reader, kMayWait);
    machine_.read(host(0), early, bytes, reader);
    machine_.free(early, reader);
    const CUdeviceptr plain = machine_.allocate_plain(bytes);
    machine_.fill(plain, bytes, kLater, writer);
    machine_.wait(writer);
    gate.open();
    machine_.wait(reader);
    report_.expect(holds(host(0), bytes, kEarly), "a late reader saw what cuMemAlloc gave away");
    machine_.free_plain(plain);
  }

  // Memory that cuMemFree frees while a stream still reads it.
  void try_plain_free(CUstream reader, CUstream writer, std::size_t bytes) {
    const CUdeviceptr early = machine_.allocate_plain(bytes);
    machine_.fill(early, bytes, kEarly, reader);
    Gate gate(machine_, reader, kMayWait);
    machine_.read(host(0), early, bytes, reader);
    machine_.free_plain(early);
    const bool waited = machine_.cuda.cuStreamQuery(reader) == CUDA_SUCCESS;
    take_three(writer, bytes);
    gate.open();
    finish(reader, writer, bytes, "cuMemFree");
    report_.fact("cuMemFree waits for the device", waited ? "yes" : "no");
  }

 private:
  static constexpr std::uint32_t kEarly = 0xe1e1e1e1;
  static constexpr std::uint32_t kLater = 0x2b2b2b2b;

  [[nodiscard]] void* host(std::size_t index) const { return static_cast<char*>(host_.data()) + index * kLargestLate; }

  [[nodiscard]] CUevent make_event() const {
    CUevent event = nullptr;
    machine_.must(machine_.cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    return event;
  }

  // Takes three blocks, so that memory that is not the first choice is taken too.
  void take_three(CUstream stream, std::size_t bytes) {
    for (std::size_t i = 1; i <= 3; ++i) {
      const CUdeviceptr later = machine_.allocate(bytes, stream);
      machine_.fill(later, bytes, kLater + static_cast<std::uint32_t>(i), stream);
      machine_.read(host(i), later, bytes, stream);
      taken_.push_back(later);
    }
  }

  void finish(CUstream reader, CUstream writer, std::size_t bytes, const std::string& who) {
    machine_.wait(reader);
    machine_.wait(writer);
    report_.expect(holds(host(0), bytes, kEarly), "a late reader saw the data of the next owner: " + who);
    for (std::size_t i = 1; i <= 3; ++i) {
      report_.expect(holds(host(i), bytes, kLater + static_cast<std::uint32_t>(i)), "a new owner lost data: " + who);
    }
    for (const CUdeviceptr later : taken_) machine_.free(later, writer);
    taken_.clear();
    machine_.wait(writer);
  }

  const Machine& machine_;
  Report& report_;
  Pinned host_;
  std::vector<CUdeviceptr> taken_;
};

// Memory of a pool that cuMemFree frees when the stream of its allocation is gone: it was destroyed, or belonged to a
// thread that has ended. One block exists at a time, so that the small device never runs out of memory.
void free_without_stream(Machine& machine, Report& report) {
  constexpr std::size_t kDevice = 512 * kMiB;
  constexpr std::size_t kBlock = 96 * kMiB;
  const Smaller smaller(machine, kDevice);
  const std::array<unsigned, 2> kinds{CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING};
  for (int round = 0; round < 12; ++round) {
    const CUstream stream = machine.make_stream(kinds[static_cast<std::size_t>(round) % kinds.size()]);
    const CUdeviceptr at = machine.allocate(kBlock, stream);
    machine.wait(stream);
    machine.destroy(stream);
    machine.free_plain(at);
    CUdeviceptr of_thread = 0;
    std::thread([&] {
      try {
        machine.join();
        of_thread = machine.allocate(kBlock, CU_STREAM_PER_THREAD);
        machine.wait(CU_STREAM_PER_THREAD);
      } catch (const std::exception& error) {
        report.expect(false, error.what());
      }
    }).join();
    if (of_thread != 0) machine.free_plain(of_thread);
  }
}

// One stream of each kind.
struct Streams {
  explicit Streams(const Machine& from)
      : machine(from), first(from.make_stream()), second(from.make_stream()), blocking(from.make_stream(0)) {}
  ~Streams() {
    for (const CUstream stream : {first, second, blocking}) machine.cuda.cuStreamDestroy(stream);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  const Machine& machine;
  const CUstream first;
  const CUstream second;
  const CUstream blocking;
};

}  // namespace

void late_readers(Machine& machine, Report& report, std::uint64_t) {
  const Streams streams(machine);
  Late late(machine, report);
  struct Kind {
    const char* name;
    CUstream stream;
  };
  const std::array<Kind, 5> kinds{Kind{"first", streams.first}, Kind{"second", streams.second},
                                  Kind{"blocking", streams.blocking}, Kind{"legacy", nullptr},
                                  Kind{"per thread", CU_STREAM_PER_THREAD}};
  for (const std::size_t bytes : kLateSizes) {
    for (const Kind& reader : kinds) {
      for (const Kind& writer : kinds) {
        late.try_streams(reader.stream, writer.stream, bytes, std::string(reader.name) + ", then " + writer.name);
      }
    }
    late.try_chain(streams.first, streams.second, streams.blocking, bytes);
    late.try_chain(streams.blocking, streams.first, streams.second, bytes);
  }
}

void orders_of_events(Machine& machine, Report& report, std::uint64_t) {
  const Driver& cuda = machine.cuda;
  const Streams streams(machine);
  const CUstream third = machine.make_stream();
  Late late(machine, report);
  const auto record = [&](CUevent event, CUstream stream) {
    machine.must(cuda.cuEventRecord(event, stream), "cuEventRecord");
  };
  const auto record_captured = [&](CUevent event, unsigned flags) {
    Capture capture(machine, third, CU_STREAM_CAPTURE_MODE_RELAXED);
    machine.must(cuda.cuEventRecordWithFlags(event, third, flags), "cuEventRecordWithFlags");
    const CUgraph graph = capture.end();
    CUgraphExec executable = nullptr;
    machine.must(cuda.cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
    return std::pair(graph, executable);
  };
  for (const std::size_t bytes : kLateSizes) {
    for (const CUstream reader : {streams.first, CUstream{nullptr}}) {
      for (const CUstream writer : {streams.second, streams.first}) {
        if (reader == writer) continue;
        late.try_ordered(reader, third, writer, bytes);
        late.try_event(reader, writer, bytes, "the record is before the free", [&](CUevent event, bool freed) {
          if (!freed) record(event, reader);
        });
        late.try_event(reader, writer, bytes, "recorded again elsewhere", [&](CUevent event, bool freed) {
          if (freed) record(event, reader);
          if (freed) record(event, third);
        });
        late.try_event(reader, writer, bytes, "never recorded", [&](CUevent, bool) {});
      }
    }
    late.try_idle_stream(streams.blocking, streams.first, bytes);
    late.try_destroyed_idle_stream(streams.first, bytes);
    late.try_polled_stream(streams.blocking, streams.first, bytes);
  }
  // This comes last: a library may rely less on an event that a graph has recorded, and on an event that reuses its
  // handle.
  for (const std::size_t bytes : kLateSizes) {
    if (cuda.cuEventRecordWithFlags == nullptr) continue;
    std::pair<CUgraph, CUgraphExec> made{};
    late.try_event(streams.first, streams.second, bytes, "recorded by a graph", [&](CUevent event, bool freed) {
      if (!freed) made = record_captured(event, CU_EVENT_RECORD_EXTERNAL);
      if (!freed) return;
      record(event, streams.first);
      machine.must(cuda.cuGraphLaunch(made.second, third), "cuGraphLaunch");
    });
    machine.wait(third);
    machine.must(cuda.cuGraphExecDestroy(made.second), "cuGraphExecDestroy");
    machine.must(cuda.cuGraphDestroy(made.first), "cuGraphDestroy");
  }
  machine.destroy(third);
}

void plain_requests(Machine& machine, Report& report, std::uint64_t) {
  const Streams streams(machine);
  Late late(machine, report);
  for (const std::size_t bytes : kLateSizes) {
    late.try_plain_writer(streams.first, streams.second, bytes);
    late.try_plain_free(streams.first, streams.second, bytes);
  }
}

void ends_of_streams(Machine& machine, Report& report, std::uint64_t) {
  constexpr std::size_t kMany = 300;
  constexpr std::size_t kBytes = 64 * 1024;
  {
    const Streams streams(machine);
    Late late(machine, report);
    for (const std::size_t bytes : kLateSizes) {
      late.try_destroyed(streams.first, bytes);
      late.try_destroyed(streams.blocking, bytes);
    }
  }
  const Pinned host(machine, kMany * kBytes);
  const auto part = [&](std::size_t i) { return static_cast<char*>(host.data()) + i * kBytes; };
  std::vector<CUstream> many(kMany);
  for (CUstream& stream : many) stream = machine.make_stream();
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < kMany; ++i) {
      const CUdeviceptr at = machine.allocate(kBytes, many[i]);
      machine.fill(at, kBytes, pattern_of(i), many[i]);
      machine.read(part(i), at, kBytes, many[i]);
      machine.free(at, many[i]);
    }
    for (const CUstream stream : many) machine.wait(stream);
    for (std::size_t i = 0; i < kMany; ++i) {
      report.expect(holds(part(i), kBytes, pattern_of(i)), "one of many streams lost data");
    }
  }
  for (const CUstream stream : many) machine.destroy(stream);
  free_without_stream(machine, report);
}

// Memory goes from thread to thread, each on a default stream of its own; threads end with frees pending.
void thread_streams(Machine& machine, Report& report, std::uint64_t) {
  constexpr std::size_t kBytes = 5 * kMiB;
  constexpr std::size_t kRounds = 12;
  const CUstream own = CU_STREAM_PER_THREAD;
  const Pinned host(machine, 2 * kRounds * kBytes);
  const auto part = [&](std::size_t i) { return static_cast<char*>(host.data()) + i * kBytes; };
  for (std::size_t round = 0; round < kRounds; ++round) {
    const CUdeviceptr handed = machine.allocate(kBytes, own);
    machine.fill(handed, kBytes, pattern_of(2 * round), own);
    machine.wait(own);
    std::thread([&] {
      try {
        machine.join();
        machine.read(part(2 * round), handed, kBytes, own);
        machine.free(handed, own);
        const CUdeviceptr mine = machine.allocate(kBytes, own);
        machine.fill(mine, kBytes, pattern_of(2 * round + 1), own);
        machine.read(part(2 * round + 1), mine, kBytes, own);
        machine.free(mine, own);
      } catch (const std::exception& error) {
        report.expect(false, error.what());
      }
    }).join();
  }
  machine.must(machine.cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  for (std::size_t i = 0; i < 2 * kRounds; ++i) {
    report.expect(holds(part(i), kBytes, pattern_of(i)), "a thread's own stream lost data");
  }
}

}  // namespace stalloc::conformance
