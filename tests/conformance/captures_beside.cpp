// SPDX-License-Identifier: Apache-2.0
// What another thread and the capturing thread may do while a stream is captured: the answer to each call, how the
// capture ends, and what its graph then does.
#include <fmt/format.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/capture.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

// A stream to be captured, and what the calls beside its capture need. The stream has made no request before, unless an
// action makes one first.
class CaptureScene {
 public:
  CaptureScene(const Machine& from, unsigned flags)
      : machine(from),
        cuda(from.cuda),
        captured(from.make_stream(flags)),
        side(from.make_stream()),
        third(from.make_stream()),
        pool(from.make_pool()),
        plain(from.allocate_plain(kSomeBytes)),
        ordered(from.allocate(kSomeBytes, side)),
        target(from.allocate_plain(kSomeBytes)) {
    machine.must(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    machine.must(cuda.cuEventRecord(event, side), "cuEventRecord");
    machine.wait(side);
  }
  // Frees what is left; whether that succeeds does not matter here.
  ~CaptureScene() {
    for (const CUdeviceptr at : plain_extra_) cuda.cuMemFree(at);
    for (const CUdeviceptr at : ordered_extra_) cuda.cuMemFreeAsync(at, side);
    if (plain != 0) cuda.cuMemFree(plain);
    if (ordered != 0) cuda.cuMemFreeAsync(ordered, side);
    cuda.cuMemFree(target);
    cuda.cuMemPoolDestroy(pool);
    cuda.cuEventDestroy(event);
    for (const CUstream stream : {captured, side, third}) {
      cuda.cuStreamSynchronize(stream);
      cuda.cuStreamDestroy(stream);
    }
  }
  CaptureScene(const CaptureScene&) = delete;
  CaptureScene& operator=(const CaptureScene&) = delete;

  // Calls whose memory the scene frees.
  CUresult allocate_plain(std::size_t bytes) {
    CUdeviceptr at = 0;
    return keep(cuda.cuMemAlloc(&at, bytes), &at, &plain_extra_);
  }
  CUresult allocate(std::size_t bytes, CUstream stream) {
    CUdeviceptr at = 0;
    return keep(cuda.cuMemAllocAsync(&at, bytes, stream), &at, &ordered_extra_);
  }
  CUresult allocate_from(CUmemoryPool from, CUstream stream) {
    CUdeviceptr at = 0;
    return keep(cuda.cuMemAllocFromPoolAsync(&at, kSomeBytes, from, stream), &at, &ordered_extra_);
  }
  CUresult free_plain(CUdeviceptr* at) { return forget(cuda.cuMemFree(*at), at); }
  CUresult free(CUdeviceptr* at, CUstream stream) { return forget(cuda.cuMemFreeAsync(*at, stream), at); }

  const Machine& machine;
  const Driver& cuda;
  const CUstream captured;
  const CUstream side;
  const CUstream third;
  const CUmemoryPool pool;
  CUevent event = nullptr;
  CUdeviceptr plain;
  CUdeviceptr ordered;
  const CUdeviceptr target;  // what the graph writes

 private:
  static CUresult keep(CUresult result, const CUdeviceptr* at, std::vector<CUdeviceptr>* all) {
    if (result == CUDA_SUCCESS) all->push_back(*at);
    return result;
  }
  static CUresult forget(CUresult result, CUdeviceptr* at) {
    if (result == CUDA_SUCCESS) *at = 0;
    return result;
  }

  std::vector<CUdeviceptr> plain_extra_;
  std::vector<CUdeviceptr> ordered_extra_;
};

struct Action {
  const char* name;
  std::function<void(CaptureScene&, Answers&)> act;
  std::function<void(CaptureScene&)> before = nullptr;  // before the capture begins
};

// Requests pieces of an eighth of the device until one is refused.
template <class Allocate>
void exhaust(CaptureScene& scene, Answers& answers, Allocate allocate) {
  const std::size_t piece = scene.machine.total_bytes() / 8;
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; i < 9 && result == CUDA_SUCCESS; ++i) result = allocate(piece);
  answers.add(result);
}

std::vector<Action> allocations() {
  return {
      {"cuMemAlloc", [](CaptureScene& s, Answers& a) { a.add(s.allocate_plain(kSomeBytes)); }},
      {"cuMemAllocAsync on another stream", [](CaptureScene& s, Answers& a) { a.add(s.allocate(kSomeBytes, s.side)); }},
      {"cuMemAllocAsync on the legacy stream",
       [](CaptureScene& s, Answers& a) { a.add(s.allocate(kSomeBytes, CU_STREAM_LEGACY)); }},
      {"cuMemAllocAsync on the thread's own stream",
       [](CaptureScene& s, Answers& a) { a.add(s.allocate(kSomeBytes, CU_STREAM_PER_THREAD)); }},
      {"cuMemAllocFromPoolAsync of a created pool",
       [](CaptureScene& s, Answers& a) { a.add(s.allocate_from(s.pool, s.side)); }},
      {"cuMemAlloc of more than there is",
       [](CaptureScene& s, Answers& a) { a.add(s.allocate_plain(s.machine.total_bytes() + 1)); }},
      {"cuMemAllocAsync of more than there is",
       [](CaptureScene& s, Answers& a) { a.add(s.allocate(s.machine.total_bytes() + 1, s.side)); }},
      {"cuMemAlloc of SIZE_MAX bytes", [](CaptureScene& s, Answers& a) { a.add(s.allocate_plain(SIZE_MAX)); }},
      {"cuMemAlloc until memory is exhausted",
       [](CaptureScene& s, Answers& a) { exhaust(s, a, [&](std::size_t bytes) { return s.allocate_plain(bytes); }); }},
      {"cuMemAllocAsync until memory is exhausted",
       [](CaptureScene& s, Answers& a) {
         exhaust(s, a, [&](std::size_t bytes) { return s.allocate(bytes, s.side); });
       }},
      {"cuMemAllocAsync of what another stream freed",
       [](CaptureScene& s, Answers& a) { a.add(s.allocate(kSomeBytes, s.third)); },
       [](CaptureScene& s) { s.free(&s.ordered, s.side); }},
      {"cuMemAllocAsync of what the captured stream freed before",
       [](CaptureScene& s, Answers& a) { a.add(s.allocate(kSomeBytes, s.third)); },
       [](CaptureScene& s) { s.free(&s.ordered, s.captured); }},
  };
}

std::vector<Action> frees() {
  return {
      {"cuMemFree of cuMemAlloc's memory", [](CaptureScene& s, Answers& a) { a.add(s.free_plain(&s.plain)); }},
      {"cuMemFree of stream-ordered memory", [](CaptureScene& s, Answers& a) { a.add(s.free_plain(&s.ordered)); }},
      {"cuMemFree of null", [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuMemFree(0)); }},
      {"cuMemFree of no such address", [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuMemFree(kNowhere)); }},
      {"cuMemFreeAsync on another stream", [](CaptureScene& s, Answers& a) { a.add(s.free(&s.ordered, s.third)); }},
      {"cuMemFreeAsync of cuMemAlloc's memory on another stream",
       [](CaptureScene& s, Answers& a) { a.add(s.free(&s.plain, s.side)); }},
      {"cuMemFreeAsync on the legacy stream",
       [](CaptureScene& s, Answers& a) { a.add(s.free(&s.ordered, CU_STREAM_LEGACY)); }},
      {"cuMemFreeAsync of no such address",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuMemFreeAsync(kNowhere, s.side)); }},
  };
}

std::vector<Action> questions_and_pools() {
  return {
      {"cuMemPoolTrimTo of the default pool",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuMemPoolTrimTo(s.machine.default_pool(), 0)); }},
      {"cuMemPoolTrimTo of a created pool",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuMemPoolTrimTo(s.pool, 0)); }},
      {"cuMemPoolTrimTo with freed memory to give back",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuMemPoolTrimTo(s.machine.default_pool(), 0)); },
       [](CaptureScene& s) { s.free(&s.ordered, s.side); }},
      {"cuMemPoolCreate and cuMemPoolDestroy",
       [](CaptureScene& s, Answers& a) {
         CUmemPoolProps wanted{};
         wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
         wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
         CUmemoryPool made = nullptr;
         if (a.add(s.cuda.cuMemPoolCreate(&made, &wanted)) == CUDA_SUCCESS) a.add(s.cuda.cuMemPoolDestroy(made));
       }},
      {"cuMemPoolGetAttribute and cuMemPoolSetAttribute",
       [](CaptureScene& s, Answers& a) {
         cuuint64_t value = 0;
         a.add(s.cuda.cuMemPoolGetAttribute(s.machine.default_pool(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
         value = 0;
         a.add(s.cuda.cuMemPoolSetAttribute(s.machine.default_pool(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
       }},
      {"cuMemGetInfo",
       [](CaptureScene& s, Answers& a) {
         std::size_t free = 0;
         std::size_t total = 0;
         a.add(s.cuda.cuMemGetInfo(&free, &total));
       }},
      {"cuMemGetAddressRange and cuPointerGetAttribute",
       [](CaptureScene& s, Answers& a) {
         CUdeviceptr base = 0;
         std::size_t bytes = 0;
         a.add(s.cuda.cuMemGetAddressRange(&base, &bytes, s.ordered));
         a.add(s.cuda.cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, s.ordered));
       }},
  };
}

template <class Value>
void ask(Answers& answers, CUresult (*get)(CUstream, Value*), CUstream stream) {
  Value found{};
  answers.add(get(stream, &found));
}

std::vector<Action> streams_and_events() {
  return {
      {"cuStreamSynchronize of another stream",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuStreamSynchronize(s.side)); }},
      {"cuStreamSynchronize of another stream that freed memory",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuStreamSynchronize(s.side)); },
       [](CaptureScene& s) { s.free(&s.ordered, s.side); }},
      {"cuStreamQuery of another stream", [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuStreamQuery(s.side)); }},
      {"cuEventSynchronize of an event of its own",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuEventSynchronize(s.event)); }},
      {"cuEventQuery of an event of its own", [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuEventQuery(s.event)); }},
      {"cuEventRecord and cuStreamWaitEvent among other streams",
       [](CaptureScene& s, Answers& a) {
         a.add(s.cuda.cuEventRecord(s.event, s.side));
         a.add(s.cuda.cuStreamWaitEvent(s.third, s.event, 0));
       }},
      {"the flags, the context and the priority of another stream",
       [](CaptureScene& s, Answers& a) {
         ask(a, s.cuda.cuStreamGetFlags, s.side);
         ask(a, s.cuda.cuStreamGetCtx, s.side);
         ask(a, s.cuda.cuStreamGetPriority, s.side);
       }},
      {"cuStreamCreate and cuStreamDestroy",
       [](CaptureScene& s, Answers& a) {
         CUstream made = nullptr;
         if (a.add(s.cuda.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS) return;
         a.add(s.cuda.cuStreamDestroy(made));
       }},
      {"cuStreamDestroy of a stream that freed memory",
       [](CaptureScene& s, Answers& a) {
         CUstream made = nullptr;
         if (a.add(s.cuda.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS) return;
         a.add(s.free(&s.ordered, made));
         a.add(s.cuda.cuStreamDestroy(made));
       }},
      {"cuMemHostAlloc and cuMemFreeHost",
       [](CaptureScene& s, Answers& a) {
         void* memory = nullptr;
         if (a.add(s.cuda.cuMemHostAlloc(&memory, 4096, 0)) != CUDA_SUCCESS) return;
         if (a.add(s.cuda.cuMemFreeHost(memory)) != CUDA_SUCCESS) return;
       }},
      {"cuCtxSynchronize", [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuCtxSynchronize()); }},
  };
}

// Calls on the captured stream, which only its own thread may use.
std::vector<Action> within() {
  return {
      {"the flags of the captured stream",
       [](CaptureScene& s, Answers& a) { ask(a, s.cuda.cuStreamGetFlags, s.captured); }},
      {"the context of the captured stream",
       [](CaptureScene& s, Answers& a) { ask(a, s.cuda.cuStreamGetCtx, s.captured); }},
      {"the priority of the captured stream",
       [](CaptureScene& s, Answers& a) { ask(a, s.cuda.cuStreamGetPriority, s.captured); }},
      {"another stream joins the capture and is joined",
       [](CaptureScene& s, Answers& a) {
         a.add(s.cuda.cuEventRecord(s.event, s.captured));
         a.add(s.cuda.cuStreamWaitEvent(s.side, s.event, 0));
         a.add(s.cuda.cuEventRecord(s.event, s.side));
         a.add(s.cuda.cuStreamWaitEvent(s.captured, s.event, 0));
       }},
      {"the captured stream waits for its own event",
       [](CaptureScene& s, Answers& a) {
         a.add(s.cuda.cuEventRecord(s.event, s.captured));
         a.add(s.cuda.cuStreamWaitEvent(s.captured, s.event, 0));
       }},
      {"the captured stream waits for an event from outside",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuStreamWaitEvent(s.captured, s.event, 0)); }},
      {"a stream that has joined uses the memory of another one",
       [](CaptureScene& s, Answers& a) {
         a.add(s.cuda.cuEventRecord(s.event, s.captured));
         a.add(s.cuda.cuStreamWaitEvent(s.side, s.event, 0));
         a.add(s.free(&s.ordered, s.side));
         a.add(s.cuda.cuEventRecord(s.event, s.side));
         a.add(s.cuda.cuStreamWaitEvent(s.captured, s.event, 0));
       }},
      {"cuMemAllocAsync and cuMemFreeAsync on the captured stream",
       [](CaptureScene& s, Answers& a) {
         CUdeviceptr at = 0;
         if (a.add(s.cuda.cuMemAllocAsync(&at, kSomeBytes, s.captured)) != CUDA_SUCCESS) return;
         a.add(s.cuda.cuMemsetD32Async(at, 1, kSomeBytes / 4, s.captured));
         a.add(s.cuda.cuMemFreeAsync(at, s.captured));
       }},
      {"cuMemAllocFromPoolAsync of a created pool on the captured stream",
       [](CaptureScene& s, Answers& a) {
         CUdeviceptr at = 0;
         if (a.add(s.cuda.cuMemAllocFromPoolAsync(&at, kSomeBytes, s.pool, s.captured)) != CUDA_SUCCESS) return;
         a.add(s.cuda.cuMemFreeAsync(at, s.captured));
       }},
      {"cuMemAllocFromPoolAsync of no pool on the captured stream",
       [](CaptureScene& s, Answers& a) {
         CUdeviceptr at = 0;
         a.add(s.cuda.cuMemAllocFromPoolAsync(&at, kSomeBytes, nullptr, s.captured));
       }},
      {"cuMemAllocAsync of more than there is on the captured stream",
       [](CaptureScene& s, Answers& a) {
         CUdeviceptr at = 0;
         a.add(s.cuda.cuMemAllocAsync(&at, s.machine.total_bytes() + 1, s.captured));
       }},
      {"cuMemAllocAsync of nothing on the captured stream",
       [](CaptureScene& s, Answers& a) {
         CUdeviceptr at = 0;
         a.add(s.cuda.cuMemAllocAsync(&at, 0, s.captured));
       }},
      {"cuMemFreeAsync on the captured stream of memory from outside",
       [](CaptureScene& s, Answers& a) { a.add(s.free(&s.ordered, s.captured)); }},
      {"cuMemFreeAsync on the captured stream of cuMemAlloc's memory",
       [](CaptureScene& s, Answers& a) { a.add(s.free(&s.plain, s.captured)); }},
      {"cuMemFreeAsync on the captured stream of no such address",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuMemFreeAsync(kNowhere, s.captured)); }},
      {"cuMemFreeAsync on the captured stream of null",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuMemFreeAsync(0, s.captured)); }},
      {"cuStreamSynchronize of the captured stream",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuStreamSynchronize(s.captured)); }},
      {"cuStreamQuery of the captured stream",
       [](CaptureScene& s, Answers& a) { a.add(s.cuda.cuStreamQuery(s.captured)); }},
  };
}

// What the graph does: how many nodes it has (none of them may be foreign), and whether its work is done.
std::string describe(const CaptureScene& scene, CUgraph graph) {
  const Machine& machine = scene.machine;
  std::string text;
  if (scene.cuda.cuGraphGetNodes != nullptr) {
    std::size_t count = 0;
    machine.must(scene.cuda.cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
    text = fmt::format(", {} nodes", count);
  }
  CUgraphExec executable = nullptr;
  machine.must(scene.cuda.cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
  const CUresult launched = scene.cuda.cuGraphLaunch(executable, scene.captured);
  if (launched != CUDA_SUCCESS) {  // a graph may need more memory than there is
    machine.must(scene.cuda.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    return text + ", its launch returns " + machine.name(launched);
  }
  const Pinned host(machine, kSomeBytes);
  machine.read(host.data(), scene.target, kSomeBytes, scene.captured);
  machine.wait(scene.captured);
  machine.must(scene.cuda.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
  return text + (holds(host.data(), kSomeBytes, pattern_of(1)) ? ", its work is done" : ", its work is not done");
}

std::string try_one(const Machine& machine, const Action& action, CUstreamCaptureMode mode, unsigned flags,
                    bool beside) {
  CaptureScene scene(machine, flags);
  Answers answers(machine);
  if (action.before) action.before(scene);
  machine.fill(scene.target, kSomeBytes, pattern_of(2), scene.side);
  machine.wait(scene.side);
  Capture capture(machine, scene.captured, mode);
  const CUresult first = scene.cuda.cuMemsetD32Async(scene.target, pattern_of(1), kSomeBytes / 4, scene.captured);
  if (beside) {
    in_thread(machine, [&] { action.act(scene, answers); });
  } else {
    action.act(scene, answers);
  }
  CUgraph graph = nullptr;
  const CUresult ended = capture.end(&graph);
  std::string text = fmt::format("{}; the capture ends with {}", answers.text(), machine.name(ended));
  if (first != CUDA_SUCCESS) text += ", its first node was refused with " + machine.name(first);
  if (ended == CUDA_SUCCESS) {
    text += describe(scene, graph);
    machine.must(scene.cuda.cuGraphDestroy(graph), "cuGraphDestroy");
  }
  return text;
}

const char* name_of(CUstreamCaptureMode mode) {
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL    ? "global"
         : mode == CU_STREAM_CAPTURE_MODE_RELAXED ? "relaxed"
                                                  : "thread-local";
}

void try_all(const Machine& machine, Report& report, const std::vector<Action>& actions, CUstreamCaptureMode mode,
             bool beside) {
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    for (const Action& action : actions) {
      const std::string what = fmt::format("during a {} capture of a {}blocking stream, {}: {}", name_of(mode),
                                           flags == CU_STREAM_DEFAULT ? "" : "non-",
                                           beside ? "another thread" : "its own thread", action.name);
      try {
        report.fact_at_least(what, try_one(machine, action, mode, flags, beside));
      } catch (const std::exception& error) {
        report.expect(false, what + ": " + error.what());
      }
    }
  }
}

void try_mode(const Machine& machine, Report& report, CUstreamCaptureMode mode) {
  for (const std::vector<Action>& actions : {allocations(), frees(), questions_and_pools(), streams_and_events()}) {
    try_all(machine, report, actions, mode, /*beside=*/true);
    try_all(machine, report, actions, mode, /*beside=*/false);
  }
  try_all(machine, report, within(), mode, /*beside=*/false);
  machine.settle();
}

}  // namespace

void captures(Machine& machine, Report& report, std::uint64_t) {
  try_mode(machine, report, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  try_mode(machine, report, CU_STREAM_CAPTURE_MODE_RELAXED);
}

void captures_global(Machine& machine, Report& report, std::uint64_t) {
  try_mode(machine, report, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

}  // namespace stalloc::conformance
