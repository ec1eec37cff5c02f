// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/differential/alone.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "tests/conformance/capture.h"
#include "tests/conformance/differential/capturing.h"

namespace stalloc::conformance {

void Alone::act() {
  if (!actor_.with("alone")) return;
  switch (actor_.below(8)) {
    case 0:
      return double_frees();
    case 1:
      return actor_.with("exhaustion") ? exhaust() : settle();
    case 2:
      return actor_.with("exhaustion") ? probe() : settle();
    case 3:
      return actor_.with("figures") ? figures() : settle();
    case 4:
      return actor_.with("current-pool") ? current_pool() : settle();
    case 5:
      return actor_.with("captures") ? beside_capture() : settle();
    case 6:
      return actor_.with("captures") ? Capturing(actor_).capture_alone() : settle();
    default:
      return settle();
  }
}

void Alone::double_frees() {
  const Driver& cuda = actor_.machine_.cuda;
  CUdeviceptr plain = 0;
  CUdeviceptr ordered = 0;
  const CUstream stream = actor_.streams_.front();
  const std::size_t bytes = actor_.any_size();
  Log& log = actor_.log;
  log.answer(fmt::format("cuMemAlloc of {} bytes", bytes), cuda.cuMemAlloc(&plain, bytes));
  log.answer(fmt::format("cuMemAllocAsync of {} bytes", bytes), cuda.cuMemAllocAsync(&ordered, bytes, stream));
  log.answer("cuMemFree", cuda.cuMemFree(plain));
  log.answer("cuMemFree once more", cuda.cuMemFree(plain));
  log.answer("cuMemFreeAsync after it", cuda.cuMemFreeAsync(plain, stream));
  log.answer("cuMemFreeAsync", cuda.cuMemFreeAsync(ordered, stream));
  log.answer("cuStreamSynchronize", cuda.cuStreamSynchronize(stream));
  log.answer("cuMemFreeAsync once more", cuda.cuMemFreeAsync(ordered, stream));
  log.answer("cuMemFree after it", cuda.cuMemFree(ordered));
}

// The number of pieces is not logged: it depends on where the rest lies and on what the pools keep.
void Alone::exhaust() {
  settle();
  const Driver& cuda = actor_.machine_.cuda;
  const CUstream stream = actor_.streams_.front();
  const std::size_t piece = actor_.world_.total / 16;
  const bool plain = actor_.one_in(2);
  std::vector<CUdeviceptr> pieces;
  CUresult result = CUDA_SUCCESS;
  while (pieces.size() < 17) {
    CUdeviceptr at = 0;
    result = plain ? cuda.cuMemAlloc(&at, piece) : cuda.cuMemAllocAsync(&at, piece, stream);
    if (result != CUDA_SUCCESS) break;
    actor_.machine_.fill(at, 4096, pattern_of(at), stream);
    pieces.push_back(at);
  }
  actor_.log.answer(fmt::format("{} until nothing is left", plain ? "cuMemAlloc" : "cuMemAllocAsync"), result);
  CUresult freed = CUDA_SUCCESS;
  for (const CUdeviceptr at : pieces) {
    const CUresult now = plain ? cuda.cuMemFree(at) : cuda.cuMemFreeAsync(at, stream);
    if (freed == CUDA_SUCCESS) freed = now;
  }
  actor_.log.answer("the frees", freed);
  actor_.log.answer("cuStreamSynchronize", cuda.cuStreamSynchronize(stream));
}

// Requests all there is, then half of it. Whether that succeeds is not logged: it depends on what the pools keep. A
// pool that got all would keep it while the smallest tensor lies in it, so something is held meanwhile, as on a real
// device, where contexts need some memory.
void Alone::probe() {
  settle();
  const Driver& cuda = actor_.machine_.cuda;
  const CUdeviceptr held = actor_.machine_.allocate_plain(kPage);
  const CUstream stream = actor_.streams_.front();
  const bool plain = actor_.one_in(2);
  for (const std::size_t bytes : {actor_.world_.total, actor_.world_.total / 2}) {
    CUdeviceptr at = 0;
    const CUresult result = plain ? cuda.cuMemAlloc(&at, bytes) : cuda.cuMemAllocAsync(&at, bytes, stream);
    CUresult freed = CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) freed = plain ? cuda.cuMemFree(at) : cuda.cuMemFreeAsync(at, stream);
    actor_.log.answer("its free", freed);
    actor_.log.answer("cuStreamSynchronize", cuda.cuStreamSynchronize(stream));
  }
  actor_.log.answer("cuMemFree of what was held", cuda.cuMemFree(held));
}

void Alone::figures() {
  const Machine& machine = actor_.machine_;
  cuuint64_t used = 0;
  actor_.log.answer("the default pool's use", machine.cuda.cuMemPoolGetAttribute(
                                                  machine.default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  actor_.log.line(fmt::format("it is {}", used));
}

void Alone::current_pool() {
  const Machine& machine = actor_.machine_;
  const Driver& cuda = machine.cuda;
  if (cuda.cuDeviceSetMemPool == nullptr) return;
  Log& log = actor_.log;
  const CUstream stream = actor_.streams_.front();
  const auto use = [&](const char* which, CUmemoryPool pool) {
    cuuint64_t used = 0;
    log.answer(fmt::format("the use of the {} pool", which),
               cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    log.line(fmt::format("it is {}", used));
  };
  log.answer("the own pool becomes the current one", cuda.cuDeviceSetMemPool(machine.device, actor_.pool_));
  CUdeviceptr at = 0;
  const std::size_t bytes = actor_.any_size();
  const CUresult result = cuda.cuMemAllocAsync(&at, bytes, stream);
  log.answer(fmt::format("cuMemAllocAsync of {} bytes", bytes), result);
  use("current", actor_.pool_);
  use("default", machine.default_pool());
  log.answer("the default pool becomes the current one",
             cuda.cuDeviceSetMemPool(machine.device, machine.default_pool()));
  log.answer("its free", cuda.cuMemFreeAsync(at, stream));
  log.answer("cuStreamSynchronize", cuda.cuStreamSynchronize(stream));
  use("own", actor_.pool_);
}

// Another thread's calls during a capture of this one: all those that concern neither this thread nor its stream.
void Alone::beside_capture() {
  const Machine& machine = actor_.machine_;
  const Driver& cuda = machine.cuda;
  Log& log = actor_.log;
  const CUstream stream = machine.make_stream();
  const CUstream side = actor_.streams_.front();
  const CUdeviceptr target = machine.allocate_plain(64 * 1024);
  {
    Capture capture(machine, stream,
                    actor_.one_in(2) ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    log.answer("a node", cuda.cuMemsetD32Async(target, 1, 16 * 1024, stream));
    in_thread(machine, [&] {
      CUdeviceptr at = 0;
      log.answer("beside it cuMemAlloc", cuda.cuMemAlloc(&at, actor_.any_size()));
      log.answer("beside it cuMemFree", cuda.cuMemFree(at));
      log.answer("beside it cuMemAllocAsync", cuda.cuMemAllocAsync(&at, actor_.any_size(), side));
      log.answer("beside it cuMemFreeAsync", cuda.cuMemFreeAsync(at, side));
      log.answer("beside it a request for too much", cuda.cuMemAllocAsync(&at, actor_.world_.total + kMiB, side));
      log.answer("beside it cuMemPoolTrimTo", cuda.cuMemPoolTrimTo(machine.default_pool(), 0));
      log.answer("beside it cuStreamSynchronize", cuda.cuStreamSynchronize(side));
    });
    CUgraph graph = nullptr;
    if (log.answer("the capture ends", capture.end(&graph)) == CUDA_SUCCESS) cuda.cuGraphDestroy(graph);
  }
  machine.destroy(stream);
  log.answer("cuMemFree of what it would have written", cuda.cuMemFree(target));
}

void Alone::settle() {
  const Machine& machine = actor_.machine_;
  actor_.log.answer("cuCtxSynchronize", machine.cuda.cuCtxSynchronize());
  actor_.log.answer("cuMemPoolTrimTo", machine.cuda.cuMemPoolTrimTo(machine.default_pool(), 0));
}

void Alone::reset() {
  Machine& machine = actor_.machine_;
  const Driver& cuda = machine.cuda;
  Log& log = actor_.log;
  const CUdeviceptr plain = machine.allocate_plain(actor_.any_size());
  machine.free(machine.allocate(actor_.any_size(), actor_.streams_.front()), actor_.streams_.front());
  machine.must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  const bool first_version = actor_.one_in(2) && cuda.first_primary_reset != nullptr;
  log.answer(first_version ? "a reset by the first version" : "a reset",
             first_version ? cuda.first_primary_reset(machine.device) : cuda.cuDevicePrimaryCtxReset(machine.device));
  CUdeviceptr at = 0;
  log.answer("under the old context cuMemAlloc", cuda.cuMemAlloc(&at, 4096));
  log.answer("under the old context cuMemFree", cuda.cuMemFree(plain));
  log.answer("under the old context cuMemAllocAsync", cuda.cuMemAllocAsync(&at, 4096, CU_STREAM_LEGACY));
  cuda.cuDevicePrimaryCtxRelease(machine.device);
  machine.enter();
  log.answer("under the new context cuMemFree of old memory", cuda.cuMemFree(plain));
}

}  // namespace stalloc::conformance
