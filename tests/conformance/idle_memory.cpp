// SPDX-License-Identifier: Apache-2.0
// Freed memory is available to every other function as soon as CUDA promises it.
#include <fmt/format.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/capture.h"
#include "tests/conformance/checks.h"
#include "tests/conformance/fault.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kPieces = 24;        // of 32: three quarters of the device
constexpr std::size_t kGrain = 32 * kMiB;  // a driver's pool may take memory in multiples of it
constexpr std::size_t kStamp = 4096;

// A way to allocate and free, and what the pool may keep.
struct Way {
  const char* name;
  bool plain;       // by cuMemAlloc
  bool plain_free;  // by cuMemFree
  bool keeps;       // the release threshold is beyond all memory
};
constexpr std::array<Way, 5> kWays{
    Way{"cuMemAlloc and cuMemFree", true, true, false},
    Way{"cuMemAlloc and cuMemFree, with a release threshold", true, true, true},
    Way{"cuMemAllocAsync and cuMemFreeAsync", false, false, false},
    Way{"cuMemAllocAsync and cuMemFreeAsync, with a release threshold", false, false, true},
    Way{"cuMemAllocAsync and cuMemFree", false, true, false}};

struct Synchronization {
  const char* name;
  std::function<CUresult(const Driver&, CUstream, CUevent)> make;
};

std::vector<Synchronization> synchronizations() {
  return {
      {"the stream", [](const Driver& cuda, CUstream stream, CUevent) { return cuda.cuStreamSynchronize(stream); }},
      {"an event", [](const Driver& cuda, CUstream, CUevent event) { return cuda.cuEventSynchronize(event); }},
      {"the context", [](const Driver& cuda, CUstream, CUevent) { return cuda.cuCtxSynchronize(); }},
  };
}

// Another function that takes memory and gives it back, and notes the answers.
struct Need {
  const char* name;
  std::function<void(const Machine&, CUstream, Answers&)> have;
};

void need_handle(const Machine& machine, Answers& answers) {
  const Driver& cuda = machine.cuda;
  if (cuda.cuMemCreate == nullptr) return answers.add_word("not there");
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  const std::size_t half = machine.total_bytes() / 2 / kPage * kPage;
  if (answers.add(cuda.cuMemCreate(&handle, half, &wanted, 0)) == CUDA_SUCCESS) answers.add(cuda.cuMemRelease(handle));
}

void need_pitch(const Machine& machine, Answers& answers) {
  const Driver& cuda = machine.cuda;
  if (cuda.cuMemAllocPitch == nullptr) return answers.add_word("not there");
  CUdeviceptr at = 0;
  std::size_t pitch = 0;
  const std::size_t rows = machine.total_bytes() / 2 / kPage;
  if (answers.add(cuda.cuMemAllocPitch(&at, &pitch, kPage, rows, 16)) == CUDA_SUCCESS) answers.add(cuda.cuMemFree(at));
}

void need_array(const Machine& machine, Answers& answers) {
  const Driver& cuda = machine.cuda;
  if (cuda.cuArrayCreate == nullptr || cuda.cuArrayDestroy == nullptr) return answers.add_word("not there");
  CUDA_ARRAY_DESCRIPTOR wanted{};
  wanted.Width = 65536;  // elements, of 16 bytes each
  wanted.Height = machine.total_bytes() * 2 / 5 / kMiB;
  wanted.Format = CU_AD_FORMAT_FLOAT;
  wanted.NumChannels = 4;
  CUarray array = nullptr;
  if (answers.add(cuda.cuArrayCreate(&array, &wanted)) == CUDA_SUCCESS) answers.add(cuda.cuArrayDestroy(array));
}

// A graph with memory of its own, as frameworks capture them.
void need_graph(const Machine& machine, CUstream stream, Answers& answers) {
  const Driver& cuda = machine.cuda;
  Capture capture(machine, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUdeviceptr at = 0;
  const CUresult allocated = answers.add(cuda.cuMemAllocAsync(&at, machine.total_bytes() / 2, stream));
  if (allocated == CUDA_SUCCESS) {
    machine.fill(at, kStamp, pattern_of(1), stream);
    answers.add(cuda.cuMemFreeAsync(at, stream));
  }
  CUgraph graph = nullptr;
  if (answers.add(capture.end(&graph)) != CUDA_SUCCESS) return;
  CUgraphExec executable = nullptr;
  if (answers.add(cuda.cuGraphInstantiate(&executable, graph, 0)) == CUDA_SUCCESS) {
    answers.add(cuda.cuGraphLaunch(executable, stream));
    answers.add(cuda.cuStreamSynchronize(stream));
    answers.add(cuda.cuGraphExecDestroy(executable));
  }
  answers.add(cuda.cuGraphDestroy(graph));
  if (cuda.cuDeviceGraphMemTrim != nullptr) answers.add(cuda.cuDeviceGraphMemTrim(0));
}

void need_module(const Machine& machine, Answers& answers) {
  const Driver& cuda = machine.cuda;
  if (cuda.cuModuleLoadData == nullptr || cuda.cuModuleUnload == nullptr) return answers.add_word("not there");
  CUmodule module = nullptr;
  if (answers.add(cuda.cuModuleLoadData(&module, kFaultingKernel)) == CUDA_SUCCESS) {
    answers.add(cuda.cuModuleUnload(module));
  }
}

void need_managed(const Machine& machine, Answers& answers) {
  const Driver& cuda = machine.cuda;
  if (cuda.cuMemAllocManaged == nullptr) return answers.add_word("not there");
  CUdeviceptr at = 0;
  if (answers.add(cuda.cuMemAllocManaged(&at, machine.total_bytes() / 2, CU_MEM_ATTACH_GLOBAL)) == CUDA_SUCCESS) {
    answers.add(cuda.cuMemFree(at));
  }
}

void need_plain(const Machine& machine, Answers& answers) {
  CUdeviceptr at = 0;
  if (answers.add(machine.cuda.cuMemAlloc(&at, machine.total_bytes() / 2)) == CUDA_SUCCESS) {
    answers.add(machine.cuda.cuMemFree(at));
  }
}

void need_ordered(const Machine& machine, CUstream stream, Answers& answers) {
  CUdeviceptr at = 0;
  if (answers.add(machine.cuda.cuMemAllocAsync(&at, machine.total_bytes() / 2, stream)) == CUDA_SUCCESS) {
    answers.add(machine.cuda.cuMemFreeAsync(at, stream));
    answers.add(machine.cuda.cuStreamSynchronize(stream));
  }
}

void need_created_pool(const Machine& machine, CUstream stream, Answers& answers,
                       CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE) {
  const CUmemoryPool pool = machine.make_pool(handles);
  CUdeviceptr at = 0;
  const std::size_t half = machine.total_bytes() / 2;
  if (answers.add(machine.cuda.cuMemAllocFromPoolAsync(&at, half, pool, stream)) == CUDA_SUCCESS) {
    answers.add(machine.cuda.cuMemFreeAsync(at, stream));
    answers.add(machine.cuda.cuStreamSynchronize(stream));
  }
  answers.add(machine.cuda.cuMemPoolDestroy(pool));
}

std::vector<Need> needs() {
  return {
      {"cuMemCreate of half of the device", [](const Machine& m, CUstream, Answers& a) { need_handle(m, a); }},
      {"cuMemAlloc of half of the device", [](const Machine& m, CUstream, Answers& a) { need_plain(m, a); }},
      {"cuMemAllocAsync of half of the device",
       [](const Machine& m, CUstream s, Answers& a) { need_ordered(m, s, a); }},
      {"half of the device from a created pool",
       [](const Machine& m, CUstream s, Answers& a) { need_created_pool(m, s, a); }},
      {"half of the device from a pool that can be shared",
       [](const Machine& m, CUstream s, Answers& a) {
         need_created_pool(m, s, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
       }},
      {"cuMemAllocPitch of half of the device", [](const Machine& m, CUstream, Answers& a) { need_pitch(m, a); }},
      {"cuMemAllocManaged of half of the device", [](const Machine& m, CUstream, Answers& a) { need_managed(m, a); }},
      {"cuArrayCreate of two fifths of the device", [](const Machine& m, CUstream, Answers& a) { need_array(m, a); }},
      {"a graph that needs half of the device", [](const Machine& m, CUstream s, Answers& a) { need_graph(m, s, a); }},
      {"cuModuleLoadData", [](const Machine& m, CUstream, Answers& a) { need_module(m, a); }},
  };
}

// Three quarters of the device, allocated and freed on a stream, which may be held before the frees.
class Idle {
 public:
  Idle(const Machine& from, const Way& way, bool held) : machine_(from), stream_(from.make_stream()) {
    machine_.settle();
    machine_.keep_all(machine_.default_pool(), way.keeps);
    machine_.must(machine_.cuda.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    allocate(way);
    if (held) gate_ = std::make_unique<Gate>(machine_, stream_, kGateMs);
    free(way);
    machine_.must(machine_.cuda.cuEventRecord(event_, stream_), "cuEventRecord");
  }
  ~Idle() {
    gate_.reset();
    machine_.cuda.cuEventDestroy(event_);
    machine_.cuda.cuStreamSynchronize(stream_);
    machine_.cuda.cuStreamDestroy(stream_);
    cuuint64_t nothing = 0;
    machine_.cuda.cuMemPoolSetAttribute(machine_.default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
    machine_.cuda.cuMemPoolTrimTo(machine_.default_pool(), 0);
  }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

  void synchronize(const Synchronization& by) {
    machine_.must(by.make(machine_.cuda, stream_, event_), "a synchronization");
  }
  // Opens the gate; true when a thread waited for it.
  bool waited() {
    gate_->open();
    return gate_->timed_out();
  }

 private:
  void allocate(const Way& way) {
    const std::size_t piece = machine_.total_bytes() / 32 / kGrain * kGrain;
    for (CUdeviceptr& at : pieces_) {
      at = way.plain ? machine_.allocate_plain(piece) : machine_.allocate(piece, stream_);
      machine_.fill(at, kStamp, pattern_of(at), stream_);
      machine_.fill(at + piece - kStamp, kStamp, pattern_of(at), stream_);
    }
    machine_.wait(stream_);
  }
  void free(const Way& way) {
    for (const CUdeviceptr at : pieces_) {
      if (way.plain_free) {
        machine_.free_plain(at);
      } else {
        machine_.free(at, stream_);
      }
    }
  }

  const Machine& machine_;
  const CUstream stream_;
  std::array<CUdeviceptr, kPieces> pieces_{};
  CUevent event_ = nullptr;
  std::unique_ptr<Gate> gate_;
};

std::string reserved_by_pool(const Machine& machine) {
  const double reserved =
      static_cast<double>(machine.ask(machine.default_pool(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  return fmt::format("{}/20 kept by the pool",
                     static_cast<int>(reserved / static_cast<double>(machine.total_bytes()) * 20 + 0.5));
}

// With `pending`, the frees are queued behind a gate.
void try_needs(const Machine& machine, Report& report, const Way& way, bool pending) {
  const CUstream other = machine.make_stream();
  for (const Need& need : needs()) {
    Idle idle(machine, way, pending);
    if (!pending) idle.synchronize(synchronizations().front());
    Answers answers(machine);
    need.have(machine, other, answers);
    if (pending) answers.add_word(idle.waited() ? "after waiting" : "without waiting");
    report.fact_at_least(
        fmt::format("three quarters used by {}{}: {}", way.name, pending ? ", the frees pending" : "", need.name),
        answers.text());
  }
  machine.destroy(other);
}

}  // namespace

void idle_memory(Machine& machine, Report& report, std::uint64_t) {
  const Smaller device(machine, 32 * kGiB);
  for (const Way& way : kWays) {
    for (const Synchronization& by : synchronizations()) {
      Idle idle(machine, way, false);
      const std::string what = std::string("three quarters used by ") + way.name;
      idle.synchronize(by);
      report.fact(what + ", then synchronizing " + by.name,
                  free_twentieths(machine) + ", " + reserved_by_pool(machine));
    }
    try_needs(machine, report, way, false);
    if (!way.plain_free) try_needs(machine, report, way, true);
  }
  machine.settle();
}

}  // namespace stalloc::conformance
