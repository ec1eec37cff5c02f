// SPDX-License-Identifier: Apache-2.0
// Captures, private pools and checkpoints, which the door leaves to the native allocator.
#include <chrono>
#include <optional>
#include <thread>
#include <unordered_set>

#include "tests/torch/pytorch.h"

namespace stalloc::torch_test {
namespace {

void add_pool_user([[maybe_unused]] const c10::cuda::MempoolId_t& pool) {
#if STALLOC_TORCH_MINOR >= 8
  allocator().createOrIncrefPool(0, pool);
#else
  allocator().ensureExistsAndIncrefPool(0, pool);
#endif
}

// Captures as torch.cuda.graph does: requests on the stream come from a private pool meanwhile.
class Capture {
 public:
  Capture(Stream stream, c10::cuda::MempoolId_t pool) : stream_(stream), pool_(pool) {
    allocator().beginAllocateToPool(0, pool, [stream](cudaStream_t asked) { return asked == stream.stream(); });
    MUST(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeRelaxed));
  }
  cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    MUST(cudaStreamEndCapture(stream_.stream(), &graph));
    allocator().endAllocateToPool(0, pool_);
    cudaGraphExec_t executable = nullptr;
    MUST(cudaGraphInstantiate(&executable, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return executable;
  }

 private:
  Stream stream_;
  c10::cuda::MempoolId_t pool_;
};

}  // namespace

CHECK_OF_DOOR(captured_graph) {
  const Stream stream = make_stream();
  const On on(stream);
  Tensor input(kMiB);
  settle();
  std::optional<Tensor> dropped(2 * kMiB);  // freed while its own stream is captured
  const c10::cuda::MempoolId_t pool{1, 0};
  Capture capture(stream, pool);
  c10::DataPtr inner = allocator().allocate(kMiB);
  MUST(cudaMemsetAsync(inner.get(), 7, kMiB, stream.stream()));
  MUST(cudaMemcpyAsync(input.get(), inner.get(), kMiB, cudaMemcpyDeviceToDevice, stream.stream()));
  void* graphs = inner.get();
  const c10::DataPtr freed_inside = dropped->take();
  { c10::DataPtr gone = std::move(const_cast<c10::DataPtr&>(freed_inside)); }
  {
    const On other(make_stream());  // tensors of another stream are eager meanwhile
    Tensor eager(3 * kMiB);
    EXPECT(eager.pointer().get() != graphs);
    eager.take();
  }
  inner.clear();
  cudaGraphExec_t executable = capture.end();
  std::vector<Tensor> others;  // none of them lies in the graph's memory
  for (int i = 0; i < 30; ++i) others.emplace_back(kMiB);
  for (int replay = 0; replay < 3; ++replay) MUST(cudaGraphLaunch(executable, stream.stream()));
  std::vector<char> copy(kMiB);
  MUST(cudaMemcpyAsync(copy.data(), input.get(), kMiB, cudaMemcpyDeviceToHost, stream.stream()));
  MUST(cudaStreamSynchronize(stream.stream()));
  EXPECT(copy[5] == 7 && copy[kMiB - 1] == 7);
  input.take();
  others.clear();
  MUST(cudaGraphExecDestroy(executable));
  allocator().releasePool(0, pool);
  settle();
}

// The first tensor of a thread without a context leaves another thread's capture alone.
CHECK_OF_DOOR(first_tensor_beside_a_capture) {
  if (!is_door_open()) return;  // PyTorch alone calls cudaMalloc, which breaks such a capture
  { const Tensor first(kMiB); }
  settle();
  const Stream stream = make_stream();
  MUST(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeGlobal));
  std::thread([] {
    const c10::DataPtr tensor = allocator().allocate(kMiB);
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    MUST(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == cudaStreamCaptureModeGlobal);
  }).join();
  cudaGraph_t graph = nullptr;
  MUST(cudaStreamEndCapture(stream.stream(), &graph));
  MUST(cudaGraphDestroy(graph));
}

// A capture that ends because its stream is destroyed forbids nothing any more.
CHECK_OF_DOOR(capture_of_a_destroyed_stream) {
  cudaStream_t raw = nullptr;
  MUST(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking));
  MUST(cudaStreamBeginCapture(raw, cudaStreamCaptureModeRelaxed));
  MUST(cudaStreamDestroy(raw));
  Tensor tensor(1500 * kMiB);  // of 2 GiB
  settle();
  const Stream user = make_stream();
  Gate gate(user.stream());
  allocator().recordStream(tensor.pointer(), user);
  tensor.take();
  std::thread device([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  const c10::DataPtr again = allocator().allocate(1400 * kMiB);  // waits for the user
  device.join();
}

// A free that one capture forbids does not delay one that only a shorter capture forbade.
CHECK_OF_DOOR(frees_after_different_captures) {
  if (!is_door_open()) return;  // PyTorch alone frees these at once
  cudaStream_t raw = nullptr;
  MUST(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking));
  std::optional<Tensor> first;
  {
    const On on(c10::cuda::getStreamFromExternal(raw, 0));
    first.emplace(8 * kMiB);
  }
  const Stream stream = make_stream();
  const On on(stream);
  Tensor second(300 * kMiB);
  settle();
  MUST(cudaStreamDestroy(raw));
  const Stream longer = make_stream();
  MUST(cudaStreamBeginCapture(longer.stream(), cudaStreamCaptureModeRelaxed));
  first->take();  // forbidden by any capture, since its stream is gone
  MUST(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeRelaxed));
  second.take();
  cudaGraph_t graph = nullptr;
  MUST(cudaStreamEndCapture(stream.stream(), &graph));
  MUST(cudaGraphDestroy(graph));
  const std::int64_t held = figures().reserved_bytes[0].current;
  { const c10::DataPtr again = allocator().allocate(300 * kMiB); }
  EXPECT(figures().reserved_bytes[0].current == held);
  MUST(cudaStreamEndCapture(longer.stream(), &graph));
  MUST(cudaGraphDestroy(graph));
}

// A tensor that other streams used may be freed while they are captured.
CHECK_OF_DOOR(recorded_frees_during_capture) {
  if (!is_door_open()) return;  // from 2.15 on PyTorch alone asks for an event of the captured stream
  const Stream captured = make_stream();
  const Stream side = make_stream();
  std::optional<Tensor> tensor;
  {
    const On on(side);
    tensor.emplace(4 * kMiB);
  }
  tensor->use_on(captured);
  settle();
  const On on(captured);
  const c10::cuda::MempoolId_t pool{2, 0};
  Capture capture(captured, pool);
  tensor->take();
  {
    Tensor eager_elsewhere = [&] {
      const On other(side);
      return Tensor(kMiB);
    }();
    eager_elsewhere.take();
  }
  MUST(cudaGraphExecDestroy(capture.end()));
  allocator().releasePool(0, pool);
  EXPECT(figures().allocated_bytes[0].current == 0);
  const On again(side);
  for (int i = 0; i < 20; ++i) Tensor each(4 * kMiB);
  settle();
}

CHECK_OF_DOOR(user_pools) {
  const c10::cuda::MempoolId_t pool{0, 3};
  add_pool_user(pool);
  EXPECT(allocator().getPoolUseCount(0, pool) == 1);
  allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  EXPECT(allocator().getPoolUseCount(0, pool) == 2);
  Tensor inside(3 * kMiB);
  allocator().endAllocateToPool(0, pool);
  Tensor outside(3 * kMiB);
  EXPECT(inside.pointer().get_deleter() == outside.pointer().get_deleter());
  const std::unordered_set<void*> live{inside.pointer().get()};
  EXPECT(allocator().checkPoolLiveAllocations(0, pool, live));
  inside.use_on(make_stream());
  inside.drop();
  settle();
  allocator().releasePool(0, pool);
  allocator().releasePool(0, pool);
}

// A pool's blocks that another stream used are reused once it has finished with them, since PyTorch looks for that at
// its next request outside of the pool.
CHECK_OF_DOOR(pool_blocks_of_other_streams) {
  const c10::cuda::MempoolId_t pool{0, 82};
  const Stream side = make_stream();
  add_pool_user(pool);
  for (int round = 0; round < 12; ++round) {
    allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    {
      const c10::DataPtr pooled = allocator().allocate(300 * kMiB);  // of 2 GiB
      allocator().recordStream(pooled, side);
    }
    allocator().endAllocateToPool(0, pool);
    settle();
    const c10::DataPtr eager = allocator().allocate(1000);
    EXPECT(figures().active_bytes[0].current == 1024);
  }
}

// A request while such a block waits leaves another thread's capture alone.
CHECK_OF_DOOR(waiting_block_beside_a_capture) {
  if (!is_door_open()) return;  // PyTorch alone asks for the block's event, which breaks such a capture
  const c10::cuda::MempoolId_t pool{0, 83};
  const Stream side = make_stream();
  add_pool_user(pool);
  allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  c10::DataPtr pooled = allocator().allocate(10 * kMiB);
  allocator().recordStream(pooled, side);
  allocator().endAllocateToPool(0, pool);
  pooled.clear();
  settle();
  const Stream stream = make_stream();
  MUST(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeGlobal));
  std::thread([] { const c10::DataPtr eager = allocator().allocate(1000); }).join();
  cudaGraph_t graph = nullptr;
  MUST(cudaStreamEndCapture(stream.stream(), &graph));
  MUST(cudaGraphDestroy(graph));
  EXPECT(figures().active_bytes[0].current == 0);
}

// As for pools above, for graphs that share a pool.
CHECK_OF_DOOR(graphs_blocks_of_other_streams) {
  const c10::cuda::MempoolId_t pool{5, 0};
  const Stream stream = make_stream();
  const Stream side = make_stream();
  const On on(stream);
  add_pool_user(pool);
  for (int round = 0; round < 12; ++round) {
    Capture capture(stream, pool);
    {
      const c10::DataPtr inner = allocator().allocate(300 * kMiB);
      allocator().recordStream(inner, side);
    }
    MUST(cudaGraphExecDestroy(capture.end()));
    for (int i = 0; i < 2; ++i) {
      settle();
      const c10::DataPtr eager = allocator().allocate(1000);
    }
  }
}

// The state of a pool is saved and restored, as graph trees do.
CHECK_OF_DOOR(checkpoints) {
  const c10::cuda::MempoolId_t pool{4, 0};
  add_pool_user(pool);
  allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  c10::DataPtr first = allocator().allocate(kMiB);
  c10::DataPtr second = allocator().allocate(2 * kMiB);
  const auto state = allocator().getCheckpointState(0, pool);
  second.clear();
  allocator().endAllocateToPool(0, pool);
  auto delta = allocator().setCheckpointPoolState(0, state);
  EXPECT(!delta.dataptrs_allocd.empty());
  for (c10::DataPtr& pointer : delta.dataptrs_allocd) {
    EXPECT(pointer.get_deleter() == allocator().raw_deleter());
    if (pointer.get() == first.get()) pointer.release_context();
  }
  delta.dataptrs_allocd.clear();
  first.clear();
  EXPECT(figures().allocated_bytes[0].current == 0);
  allocator().releasePool(0, pool);
}

}  // namespace stalloc::torch_test
