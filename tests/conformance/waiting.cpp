// SPDX-License-Identifier: Apache-2.0
// Calls while a gate holds a stream. A call that does not wait for it under CUDA alone must not wait under a library
// either, since the stream may be waiting for this thread.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/capture.h"
#include "tests/conformance/checks.h"
#include "tests/conformance/green_context.h"

namespace stalloc::conformance {
namespace {

constexpr int kLongMs = 2'000;  // how long a call waits that waits for the gate; no other takes nearly as long
constexpr int kBriefMs = 200;   // for calls that are known to wait
constexpr std::size_t kSmall = 20'000;
constexpr std::size_t kBig = 16 * kMiB;

// A stream to be held, other streams, and memory that was allocated before.
class HeldScene {
 public:
  explicit HeldScene(const Machine& from)
      : machine(from), cuda(from.cuda), held(from.make_stream()), other(from.make_stream()) {
    for (CUdeviceptr& at : blocks) at = machine.allocate(kSmall, held);
    plain = machine.allocate_plain(kSmall);
    machine.wait(held);
  }
  ~HeldScene() {
    for (const CUdeviceptr at : blocks) {
      if (at != 0) cuda.cuMemFreeAsync(at, other);
    }
    for (const CUdeviceptr at : extra) cuda.cuMemFreeAsync(at, other);
    if (plain != 0) cuda.cuMemFree(plain);
    for (const CUstream stream : {held, other}) {
      cuda.cuStreamSynchronize(stream);
      cuda.cuStreamDestroy(stream);
    }
    cuda.cuMemPoolTrimTo(machine.default_pool(), 0);
  }
  HeldScene(const HeldScene&) = delete;
  HeldScene& operator=(const HeldScene&) = delete;

  CUresult allocate(std::size_t bytes, CUstream stream) {
    CUdeviceptr at = 0;
    const CUresult result = cuda.cuMemAllocAsync(&at, bytes, stream);
    if (result == CUDA_SUCCESS) extra.push_back(at);
    return result;
  }
  CUresult allocate_plain(std::size_t bytes) {
    CUdeviceptr at = 0;
    const CUresult result = cuda.cuMemAlloc(&at, bytes);
    if (result == CUDA_SUCCESS) extra.push_back(at);
    return result;
  }
  // Frees half of the blocks, so that free memory lies between live memory.
  CUresult free_every_other(CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    for (std::size_t i = 0; i < blocks.size() && result == CUDA_SUCCESS; i += 2) {
      result = cuda.cuMemFreeAsync(blocks[i], stream);
      blocks[i] = 0;
    }
    return result;
  }

  const Machine& machine;
  const Driver& cuda;
  const CUstream held;
  const CUstream other;
  std::array<CUdeviceptr, 16> blocks{};
  CUdeviceptr plain = 0;
  std::vector<CUdeviceptr> extra;
};

struct CallBesideGate {
  const char* name;
  std::function<void(HeldScene&, Answers&)> make;
  int held_ms = kLongMs;
  bool waits_beside_full = false;  // CUDA alone makes it wait while a thread waits for room in a full stream
};

// The state of the held stream's memory.
struct Setting {
  const char* name;
  std::function<void(HeldScene&)> before;  // the gate
  std::function<void(HeldScene&)> behind;
};

std::vector<Setting> settings() {
  return {
      {"beside a held stream", nullptr, nullptr},
      {"beside a held stream that freed memory before", [](HeldScene& s) { s.free_every_other(s.held); }, nullptr},
      {"beside a held stream with frees pending", nullptr, [](HeldScene& s) { s.free_every_other(s.held); }},
  };
}

std::vector<CallBesideGate> calls() {
  return {
      {"cuMemAlloc of 20 kB", [](HeldScene& s, Answers& a) { a.add(s.allocate_plain(kSmall)); }, kLongMs, true},
      {"cuMemAlloc of 16 MiB", [](HeldScene& s, Answers& a) { a.add(s.allocate_plain(kBig)); }, kLongMs, true},
      {"cuMemAlloc of 16 MiB, three times",
       [](HeldScene& s, Answers& a) {
         for (int i = 0; i < 3; ++i) a.add(s.allocate_plain(kBig));
       },
       kLongMs, true},
      {"cuMemAlloc of more than there is",
       [](HeldScene& s, Answers& a) { a.add(s.allocate_plain(s.machine.total_bytes() + 1)); }},
      {"cuMemAlloc of SIZE_MAX bytes", [](HeldScene& s, Answers& a) { a.add(s.allocate_plain(SIZE_MAX)); }},
      {"cuMemAlloc of all that the device has",
       [](HeldScene& s, Answers& a) { a.add(s.allocate_plain(s.machine.total_bytes())); }},
      {"cuMemAlloc of half of the device twice, and again",
       [](HeldScene& s, Answers& a) {
         for (int i = 0; i < 3; ++i) a.add(s.allocate_plain(s.machine.total_bytes() / 2 - 64 * kMiB));
       },
       kLongMs, true},
      {"cuMemAllocAsync of 20 kB on another stream",
       [](HeldScene& s, Answers& a) { a.add(s.allocate(kSmall, s.other)); }},
      {"cuMemAllocAsync of 16 MiB on another stream",
       [](HeldScene& s, Answers& a) { a.add(s.allocate(kBig, s.other)); }},
      {"cuMemAllocAsync of 16 MiB on the held stream",
       [](HeldScene& s, Answers& a) { a.add(s.allocate(kBig, s.held)); }},
      {"cuMemAllocAsync of more than there is",
       [](HeldScene& s, Answers& a) { a.add(s.allocate(s.machine.total_bytes() + 1, s.other)); }},
      {"cuMemAllocAsync of all that the device has",
       [](HeldScene& s, Answers& a) { a.add(s.allocate(s.machine.total_bytes(), s.other)); }},
      {"cuMemAllocAsync of half of the device twice, and again",
       [](HeldScene& s, Answers& a) {
         for (int i = 0; i < 3; ++i) a.add(s.allocate(s.machine.total_bytes() / 2 - 64 * kMiB, s.other));
       }},
      {"cuMemFreeAsync on the held stream",
       [](HeldScene& s, Answers& a) {
         a.add(s.cuda.cuMemFreeAsync(s.blocks[1], s.held));
         s.blocks[1] = 0;
       },
       kLongMs, true},
      {"cuMemFreeAsync on another stream",
       [](HeldScene& s, Answers& a) {
         a.add(s.cuda.cuMemFreeAsync(s.blocks[1], s.other));
         s.blocks[1] = 0;
       }},
      {"cuMemFreeAsync of cuMemAlloc's memory on another stream",
       [](HeldScene& s, Answers& a) {
         a.add(s.cuda.cuMemFreeAsync(s.plain, s.other));
         s.plain = 0;
       }},
      {"cuMemFree of cuMemAlloc's memory",
       [](HeldScene& s, Answers& a) {
         a.add(s.cuda.cuMemFree(s.plain));
         s.plain = 0;
       },
       kBriefMs, true},
      {"cuMemFree of stream-ordered memory",
       [](HeldScene& s, Answers& a) {
         a.add(s.cuda.cuMemFree(s.blocks[1]));
         s.blocks[1] = 0;
       },
       kBriefMs},
      {"cuMemFree of null", [](HeldScene& s, Answers& a) { a.add(s.cuda.cuMemFree(0)); }},
      {"cuMemFree of no such address", [](HeldScene& s, Answers& a) { a.add(s.cuda.cuMemFree(kNowhere)); }},
      {"cuMemFreeAsync of no such address",
       [](HeldScene& s, Answers& a) { a.add(s.cuda.cuMemFreeAsync(kNowhere, s.other)); }},
  };
}

std::vector<CallBesideGate> calls_of_pools_and_streams() {
  return {
      {"cuMemPoolTrimTo", [](HeldScene& s, Answers& a) { a.add(s.cuda.cuMemPoolTrimTo(s.machine.default_pool(), 0)); }},
      {"cuMemPoolCreate, a request, its free and cuMemPoolDestroy",
       [](HeldScene& s, Answers& a) {
         const CUmemoryPool pool = s.machine.make_pool();
         CUdeviceptr at = 0;
         a.add(s.cuda.cuMemAllocFromPoolAsync(&at, kBig, pool, s.held));
         a.add(s.cuda.cuMemFreeAsync(at, s.held));
         a.add(s.cuda.cuMemPoolTrimTo(pool, 0));
         a.add(s.cuda.cuMemPoolDestroy(pool));
       },
       kLongMs, true},
      {"setting the release threshold",
       [](HeldScene& s, Answers& a) {
         cuuint64_t nothing = 0;
         a.add(s.cuda.cuMemPoolSetAttribute(s.machine.default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing));
       }},
      {"cuMemGetInfo",
       [](HeldScene& s, Answers& a) {
         std::size_t free = 0;
         std::size_t total = 0;
         a.add(s.cuda.cuMemGetInfo(&free, &total));
       }},
      {"cuStreamSynchronize of another stream",
       [](HeldScene& s, Answers& a) { a.add(s.cuda.cuStreamSynchronize(s.other)); }},
      {"cuStreamCreate, a request, its free and cuStreamDestroy",
       [](HeldScene& s, Answers& a) {
         CUstream made = nullptr;
         a.add(s.cuda.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
         CUdeviceptr at = 0;
         a.add(s.cuda.cuMemAllocAsync(&at, kSmall, made));
         a.add(s.cuda.cuMemFreeAsync(at, made));
         a.add(s.cuda.cuStreamDestroy(made));
       },
       kLongMs, true},
      {"cuMemCreate of half of the device",
       [](HeldScene& s, Answers& a) {
         if (s.cuda.cuMemCreate == nullptr) return a.add_word("not there");
         CUmemAllocationProp wanted{};
         wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
         wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
         CUmemGenericAllocationHandle handle = 0;
         const std::size_t bytes = s.machine.total_bytes() / 2 / kPage * kPage;
         if (a.add(s.cuda.cuMemCreate(&handle, bytes, &wanted, 0)) == CUDA_SUCCESS) a.add(s.cuda.cuMemRelease(handle));
       }},
      {"a capture with a request",
       [](HeldScene& s, Answers& a) {
         Capture capture(s.machine, s.other, CU_STREAM_CAPTURE_MODE_RELAXED);
         CUdeviceptr at = 0;
         a.add(s.cuda.cuMemAllocAsync(&at, kSmall, s.other));
         a.add(s.cuda.cuMemFreeAsync(at, s.other));
         CUgraph graph = nullptr;
         a.add(capture.end(&graph));
         a.add(s.cuda.cuGraphDestroy(graph));
       }},
  };
}

template <class Make>
std::string answers_beside_gate(const Machine& machine, CUstream held, const std::function<void()>& behind, Make make,
                                int held_ms = kLongMs) {
  Answers answers(machine);
  Gate gate(machine, held, held_ms);
  if (behind) behind();
  make(answers);
  gate.open();
  return answers.text() + (gate.timed_out() ? ", after waiting" : ", without waiting");
}

void try_all(const Machine& machine, Report& report, const std::vector<CallBesideGate>& all) {
  for (const Setting& setting : settings()) {
    for (const CallBesideGate& call : all) {
      HeldScene scene(machine);
      if (setting.before) setting.before(scene);
      const std::function<void()> behind = [&] {
        if (setting.behind) setting.behind(scene);
      };
      report.fact(std::string(setting.name) + ", " + call.name,
                  answers_beside_gate(
                      machine, scene.held, behind, [&](Answers& a) { call.make(scene, a); }, call.held_ms));
    }
  }
}

// A thread that gives the held stream work until its queue is full, and then waits for room. `start` returns when the
// thread has waited for a while; `join` returns when all of the work has found room.
class Filler {
 public:
  explicit Filler(const HeldScene& scene) : scene_(scene), written_(scene.machine.allocate_plain(kSmall)) {}
  ~Filler() {
    if (thread_.joinable()) thread_.join();
    scene_.machine.free_plain(written_);
  }
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

  void start() {
    thread_ = std::thread([this] {
      scene_.machine.join();
      for (; given_ < kMost; ++given_) scene_.cuda.cuMemsetD8Async(written_, 0, kSmall, scene_.held);
    });
    for (int before = -1; before != given_;) {
      before = given_;
      std::this_thread::sleep_for(std::chrono::milliseconds(kWhileMs));
    }
  }
  void join() { thread_.join(); }

 private:
  static constexpr int kMost = 4096;  // four times what the queue of an H200 takes
  static constexpr int kWhileMs = 50;

  const HeldScene& scene_;
  const CUdeviceptr written_;
  std::atomic<int> given_{0};
  std::thread thread_;
};

// Calls while another thread waits for room in the held stream's queue. Those that do not wait then under CUDA alone
// must not wait under a library, either (docs/decisions/17-full-queues.md).
void try_beside_full_stream(const Machine& machine, Report& report) {
  std::vector<CallBesideGate> all = calls();
  const std::vector<CallBesideGate> more = calls_of_pools_and_streams();
  all.insert(all.end(), more.begin(), more.end());
  for (const CallBesideGate& call : all) {
    if (call.waits_beside_full) continue;
    HeldScene scene(machine);
    Filler filler(scene);
    const auto behind = [&] {
      scene.free_every_other(scene.held);
      filler.start();
    };
    report.fact(std::string("beside a held stream whose queue is full, ") + call.name,
                answers_beside_gate(machine, scene.held, behind, [&](Answers& a) { call.make(scene, a); }));
    filler.join();
  }
}

// A capture that has begun before another thread waits, in a free, for room in the held stream's queue: a library that
// gives the stream work at the free must not let captures of other streams wait for it. To begin a capture meanwhile
// waits under CUDA alone.
void try_beside_waiting_free(const Machine& machine, Report& report) {
  const Driver& cuda = machine.cuda;
  HeldScene scene(machine);
  const CUstream third = machine.make_stream();
  const CUdeviceptr freed = machine.allocate(kBig, scene.held);
  const CUdeviceptr beside = machine.allocate(kBig, third);  // so that two streams use memory
  CUevent event = nullptr;
  machine.must(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  machine.must(cuda.cuEventRecord(event, third), "cuEventRecord");
  Filler filler(scene);
  std::thread freeing;
  const auto behind = [&] {
    filler.start();
    freeing = std::thread([&] {
      machine.join();
      cuda.cuMemFreeAsync(freed, scene.held);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(kBriefMs));
  };
  Capture capture(machine, scene.other, CU_STREAM_CAPTURE_MODE_RELAXED);
  report.fact(
      "beside a thread that waits in a free on a full stream, a wait for an event during a capture, and its end",
      answers_beside_gate(machine, scene.held, behind, [&](Answers& answers) {
        answers.add(cuda.cuStreamWaitEvent(third, event, CU_EVENT_WAIT_DEFAULT));
        CUgraph graph = nullptr;
        answers.add(capture.end(&graph));
        answers.add(cuda.cuGraphDestroy(graph));
      }));
  freeing.join();
  filler.join();
  machine.free(beside, third);
  machine.must(cuda.cuEventDestroy(event), "cuEventDestroy");
  machine.destroy(third);
}

// More streams than a library keeps track of, all waiting for the held one, all with frees pending.
void try_many_streams(const Machine& machine, Report& report) {
  constexpr std::size_t kMany = 300;
  const Driver& cuda = machine.cuda;
  const CUstream held = machine.make_stream();
  const CUstream last = machine.make_stream();
  std::vector<CUstream> many(kMany);
  std::vector<CUdeviceptr> blocks(kMany);
  for (std::size_t i = 0; i < kMany; ++i) {
    many[i] = machine.make_stream();
    blocks[i] = machine.allocate(kSmall, many[i]);
  }
  CUdeviceptr at = 0;
  const auto behind = [&] {
    for (const CUstream stream : many) machine.order(held, stream);
  };
  report.fact("with 300 streams that wait for a held one, their frees and a request on one more",
              answers_beside_gate(machine, held, behind, [&](Answers& answers) {
                CUresult freed = CUDA_SUCCESS;
                for (std::size_t i = 0; i < kMany; ++i) {
                  const CUresult result = cuda.cuMemFreeAsync(blocks[i], many[i]);
                  if (freed == CUDA_SUCCESS) freed = result;
                }
                answers.add(freed);
                answers.add(cuda.cuMemAllocAsync(&at, kBig, last));
              }));
  machine.free(at, last);
  machine.must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  for (const CUstream stream : many) machine.destroy(stream);
  machine.destroy(held);
  machine.destroy(last);
}

// Memory of the primary context, freed on a held stream of another one.
void try_other_context(const Machine& machine, Report& report) {
  const Driver& cuda = machine.cuda;
  const CUstream own = machine.make_stream();
  const CUdeviceptr ordered = machine.allocate(kSmall, own);
  const CUdeviceptr plain = machine.allocate_plain(kSmall);
  machine.wait(own);
  CUcontext other = nullptr;
  machine.must(cuda.create_context(&other, 0, 0), "cuCtxCreate");
  const CUstream held = machine.make_stream();
  CUdeviceptr at = 0;
  const auto nothing = std::function<void()>();
  report.fact("cuMemFreeAsync on a held stream of another context",
              answers_beside_gate(machine, held, nothing,
                                  [&](Answers& answers) { answers.add(cuda.cuMemFreeAsync(ordered, held)); }));
  report.fact("cuMemFreeAsync of cuMemAlloc's memory on a held stream of another context",
              answers_beside_gate(machine, held, nothing,
                                  [&](Answers& answers) { answers.add(cuda.cuMemFreeAsync(plain, held)); }));
  report.fact("requests on a held stream of another context",
              answers_beside_gate(machine, held, nothing, [&](Answers& answers) {
                answers.add(cuda.cuMemAllocAsync(&at, kBig, held));
                answers.add(cuda.cuMemFreeAsync(at, held));
                answers.add(cuda.cuMemAlloc(&at, kBig));
              }));
  machine.free_plain(at);
  report.fact("under the primary context, requests beside a held stream of another context",
              answers_beside_gate(machine, held, nothing, [&](Answers& answers) {
                machine.join();
                answers.add(cuda.cuMemAllocAsync(&at, kBig, own));
                answers.add(cuda.cuMemFreeAsync(at, own));
                answers.add(cuda.cuMemAlloc(&at, kBig));
                answers.add(cuda.cuMemPoolTrimTo(machine.default_pool(), 0));
                answers.add(cuda.cuStreamSynchronize(own));
              }));
  machine.free_plain(at);
  machine.must(cuda.cuCtxDestroy(other), "cuCtxDestroy");
  machine.join();
  machine.destroy(own);
}

void try_green_context(const Machine& machine, Report& report) {
  GreenContext green(machine);
  report.fact("a green context", green.answer());
  if (!green.made()) return;
  const Driver& cuda = machine.cuda;
  const CUstream stream = green.make_stream();
  const CUstream held = machine.make_stream();
  const CUdeviceptr before = machine.allocate(kSmall, held);
  machine.wait(held);
  for (const bool current : {false, true}) {
    if (current) machine.must(cuda.cuCtxSetCurrent(green.context()), "cuCtxSetCurrent");
    const std::string where = current ? "with a green context current" : "on a green context's stream";
    for (const CUstream gated : {held, stream}) {
      const std::string what =
          where + ", beside a held stream of " + (gated == stream ? "the green context" : "the primary context");
      const auto nothing = std::function<void()>();
      CUdeviceptr at = 0;
      CUdeviceptr plain = 0;
      report.fact(what + ", a request and its free",
                  answers_beside_gate(machine, gated, nothing, [&](Answers& answers) {
                    answers.add(cuda.cuMemAllocAsync(&at, kBig, stream));
                    answers.add(cuda.cuMemFreeAsync(at, stream));
                  }));
      report.fact(what + ", cuMemAlloc", answers_beside_gate(machine, gated, nothing, [&](Answers& answers) {
                    answers.add(cuda.cuMemAlloc(&plain, kBig));
                  }));
      if (plain != 0) machine.free_plain(plain);
    }
    machine.join();
  }
  const auto free_there = [&](Answers& answers) { answers.add(cuda.cuMemFreeAsync(before, stream)); };
  report.fact("memory of the primary context, freed on a held stream of a green context",
              answers_beside_gate(machine, stream, {}, free_there));
  machine.must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize");
  machine.destroy(stream);
  machine.destroy(held);
}

}  // namespace

void waiting(Machine& machine, Report& report, std::uint64_t) {
  try_all(machine, report, calls());
  try_all(machine, report, calls_of_pools_and_streams());
  try_beside_full_stream(machine, report);
  try_beside_waiting_free(machine, report);
  try_many_streams(machine, report);
  machine.settle();
}

void waiting_in_contexts(Machine& machine, Report& report, std::uint64_t) {
  try_other_context(machine, report);
  try_green_context(machine, report);
  machine.settle();
}

}  // namespace stalloc::conformance
