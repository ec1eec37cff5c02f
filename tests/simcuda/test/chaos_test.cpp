// SPDX-License-Identifier: Apache-2.0
// Threads that do everything at once, each of them correct by itself. simcuda must neither crash nor hang, must answer
// only what CUDA may, and must have all its memory back in the end, and no byte may be lost. What each thread does
// depends only on the seed.
#include <cstdlib>
#include <random>
#include <set>
#include <thread>

#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

// Whether a correct thread may get this result because of other threads: captures, resets, too little memory.
bool is_known(CUresult result) {
  static const std::set<CUresult> known{CUDA_SUCCESS,
                                        CUDA_ERROR_NOT_READY,
                                        CUDA_ERROR_OUT_OF_MEMORY,
                                        CUDA_ERROR_INVALID_VALUE,
                                        CUDA_ERROR_INVALID_HANDLE,
                                        CUDA_ERROR_CAPTURED_EVENT,
                                        CUDA_ERROR_CONTEXT_IS_DESTROYED,
                                        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                                        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                                        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT};
  return known.contains(result);
}

class Worker {
 public:
  Worker(unsigned seed, CUmemoryPool pool) : random_(seed), pool_(pool) {}

  void run(int steps) {
    cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < steps; ++i) step();
    while (!blocks_.empty()) end(blocks_.back());
    cuStreamDestroy(stream_);
    cuEventDestroy(event_);
  }

  [[nodiscard]] int odd() const { return odd_; }
  [[nodiscard]] int wrong() const { return wrong_; }

 private:
  // A block is filled with one word that no other block has.
  struct Block {
    CUdeviceptr at = 0;
    bool plain = false;
    unsigned word = 0;
  };

  static constexpr std::size_t kBytes = 64 << 10;

  unsigned below(unsigned bound) { return static_cast<unsigned>(random_() % bound); }

  CUresult note(CUresult result) {
    if (!is_known(result)) ++odd_;
    return result;
  }

  void step() {
    switch (below(16)) {
      case 0:
        return probe();
      case 1:
        note(cuMemPoolTrimTo(pool_, below(2) * kPage));
        return;
      case 2:
        return capture();
      case 3:
        note(cuCtxSynchronize());
        return;
      case 4:
        note(cuEventRecord(event_, stream_));
        note(cuEventQuery(event_));
        return;
      case 5:
        return load();
      default:
        if (blocks_.size() > 20 || (below(2) == 0 && !blocks_.empty())) return end_any();
        begin();
    }
  }

  void probe() {
    CUdeviceptr at = 0;
    if (note(cuMemAllocAsync(&at, SIZE_MAX - below(4096), stream_)) == CUDA_SUCCESS) ++wrong_;
    if (note(cuMemAlloc(&at, std::size_t{1} << 60)) == CUDA_SUCCESS) ++wrong_;
  }

  void load() {
    CUmodule module = nullptr;
    if (note(cuModuleLoadData(&module, "any image")) == CUDA_SUCCESS) note(cuModuleUnload(module));
  }

  void capture() {
    const auto mode = below(2) == 0 ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_RELAXED;
    if (note(cuStreamBeginCapture(stream_, mode)) != CUDA_SUCCESS) return;
    CUdeviceptr at = 0;
    if (note(cuMemAllocAsync(&at, kBytes, stream_)) == CUDA_SUCCESS) {
      note(cuMemsetD32Async(at, 1, kBytes / 4, stream_));
      note(cuMemFreeAsync(at, stream_));
    }
    CUgraph graph = nullptr;
    if (note(cuStreamEndCapture(stream_, &graph)) != CUDA_SUCCESS) return;
    CUgraphExec executable = nullptr;
    if (note(cuGraphInstantiate(&executable, graph, 0)) == CUDA_SUCCESS) {
      note(cuGraphLaunch(executable, stream_));
      note(cuGraphExecDestroy(executable));
    }
    note(cuGraphDestroy(graph));
  }

  void begin() {
    Block block;
    block.plain = below(4) == 0;
    block.word = static_cast<unsigned>(random_());
    const CUresult result =
        block.plain ? cuMemAlloc(&block.at, kBytes) : cuMemAllocFromPoolAsync(&block.at, kBytes, pool_, stream_);
    if (note(result) != CUDA_SUCCESS) return;
    if (note(cuMemsetD32Async(block.at, block.word, kBytes / 4, stream_)) != CUDA_SUCCESS) block.word = 0;
    blocks_.push_back(block);
  }

  void end_any() {
    std::swap(blocks_[below(static_cast<unsigned>(blocks_.size()))], blocks_.back());
    end(blocks_.back());
  }

  // Checks the block in stream order, then frees it.
  void end(Block block) {
    blocks_.pop_back();
    unsigned seen = 0;
    const CUresult read = note(cuMemcpyDtoHAsync(&seen, block.at + kBytes - 4, 4, stream_));
    if (read == CUDA_SUCCESS && block.word != 0 && seen != block.word) ++wrong_;
    for (;;) {
      const CUresult freed = note(block.plain ? cuMemFree(block.at) : cuMemFreeAsync(block.at, stream_));
      if (freed == CUDA_SUCCESS || block.plain) return;
      std::this_thread::yield();
    }
  }

  std::mt19937_64 random_;
  CUmemoryPool pool_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  std::vector<Block> blocks_;
  int odd_ = 0;
  int wrong_ = 0;
};

}  // namespace

TEST_CASE("threads that do everything at once") {
  const Machine machine;
  const char* const wanted = std::getenv("SIMCUDA_TEST_CHAOS");  // steps of each thread
  const int steps = wanted == nullptr ? 300 : std::atoi(wanted);
  const CUmemoryPool pool = make_pool();
  const std::uint64_t before = free_bytes();
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  std::vector<Worker> workers;
  for (unsigned seed = 1; seed <= 4; ++seed) workers.emplace_back(seed, pool);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) {
    threads.emplace_back([&] {
      cuCtxSetCurrent(context);
      worker.run(steps);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Worker& worker : workers) {
    CHECK(worker.odd() == 0);
    CHECK(worker.wrong() == 0);
  }
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}
