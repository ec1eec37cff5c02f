// SPDX-License-Identifier: Apache-2.0
// An allocator for PyTorch that forwards every virtual function to the native allocator. It hides the differences
// between PyTorch's versions: functions that the door implements, and whose parameters differ between versions, are
// mapped to one protected function each.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "interpose/torch/door/versions.h"

namespace stalloc::torch::door {

// The parameters of torch.cuda.memory._record_memory_history.
struct HistorySettings {
  bool enabled = false;
  native::CreateContextFn recorder = nullptr;
  std::size_t max_entries = 1;
  native::RecordContext when = native::RecordContext::NEVER;
  bool clear = false;
  std::vector<std::string> skipped_actions;
};

// The allocator of a pool that the user created.
#if STALLOC_TORCH_MINOR >= 11
using PoolAllocator = std::shared_ptr<native::CUDAAllocator>;
#else
using PoolAllocator = native::CUDAAllocator*;
#endif

class Forwarding : public native::CUDAAllocator {
 public:
  explicit Forwarding(native::CUDAAllocator& native) : native_(native) {}

  // --- c10::Allocator ---
  void copy_data(void* to, const void* from, std::size_t bytes) const override { native_.copy_data(to, from, bytes); }

  // --- in every version ---
  void init(int devices) override { native_.init(devices); }
  bool initialized() override { return native_.initialized(); }
  double getMemoryFraction(c10::DeviceIndex device) override { return native_.getMemoryFraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    native_.setMemoryFraction(fraction, device);
  }
  void enable(bool value) override { native_.enable(value); }
  bool isEnabled() const override { return native_.isEnabled(); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override { native_.cacheInfo(device, largest); }
  void* getBaseAllocation(void* address, std::size_t* bytes) override {
    return native_.getBaseAllocation(address, bytes);
  }
  using CUDAAllocator::recordStream;
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    native_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override {
    native_.endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override { native_.releasePool(device, pool); }
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override {
    return native_.getPoolUseCount(device, pool);
  }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return native_.checkPoolLiveAllocations(device, pool, expected);
  }
  native::ShareableHandle shareIpcHandle(void* address) override { return native_.shareIpcHandle(address); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return native_.getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return native_.isHistoryEnabled(); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override {
    native_.recordAnnotation(pairs);
  }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    native_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override {
    native_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    native_.enablePeerAccess(device, peer);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool peers) override {
    return native_.memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId_t pool) override {
    return native_.getCheckpointState(device, pool);
  }
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override {
    return native_.setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return native_.name(); }

  // --- in every version, with different names or parameters ---
#if STALLOC_TORCH_MINOR >= 8
  void emptyCache(MempoolId_t pool) override { empty_cache(pool); }
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, PoolAllocator allocator) override {
    native_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void pushCompileContext(std::string& what) override {
    if (ThreadMetadata* own = thread_metadata()) own->compile_contexts.push_back(what);
    native_.pushCompileContext(what);
  }
  void popCompileContext() override {
    ThreadMetadata* own = thread_metadata();
    if (own != nullptr && !own->compile_contexts.empty()) own->compile_contexts.pop_back();
    native_.popCompileContext();
  }
#else
  void emptyCache() override { empty_cache(active_pool()); }
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t pool) override {
    native_.ensureExistsAndIncrefPool(device, pool);
  }
#endif

#if STALLOC_TORCH_MINOR >= 11
  native::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return take_snapshot(pool, traces); }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool use) override {
    native_.setUseOnOOM(device, pool, use);
  }
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t max_entries,
                     native::RecordContext when, bool clear, const std::vector<std::string>& skipped_actions) override {
    native_.recordHistory(enabled, recorder, max_entries, when, clear, skipped_actions);
    configure_history({enabled, recorder, max_entries, when, clear, skipped_actions});
  }
#elif STALLOC_TORCH_MINOR >= 8
  native::SnapshotInfo snapshot(MempoolId_t pool) override { return take_snapshot(pool, true); }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool) override { native_.setUseOnOOM(device, pool); }
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t max_entries,
                     native::RecordContext when, bool clear) override {
    native_.recordHistory(enabled, recorder, max_entries, when, clear);
    configure_history({enabled, recorder, max_entries, when, clear, {}});
  }
#else
  native::SnapshotInfo snapshot() override { return take_snapshot(active_pool(), true); }
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t max_entries,
                     native::RecordContext when) override {
    native_.recordHistory(enabled, recorder, max_entries, when);
    configure_history({enabled, recorder, max_entries, when, !enabled, {}});
  }
#endif

  // --- in newer versions only ---
#if STALLOC_TORCH_MINOR >= 10
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return native_.getExpandableSegmentSizes(device);
  }
  void setNoSplit(c10::DeviceIndex device, MempoolId_t pool) override { native_.setNoSplit(device, pool); }
  void setUserMetadata(const std::string& metadata) override {
    if (ThreadMetadata* own = thread_metadata()) own->user_metadata = metadata;
    native_.setUserMetadata(metadata);
  }
  std::string getUserMetadata() override { return native_.getUserMetadata(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return native_.getMemoryInfo(device);
  }
#endif
#if STALLOC_TORCH_MINOR >= 12
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) override {
    return context_of(address);
  }
  void attachOomRejectionObserver(native::OomRejectionObserver observer) override {
    native_.attachOomRejectionObserver(std::move(observer));
  }
#endif
#if STALLOC_TORCH_MINOR >= 13
  void markCaptureBegin(c10::DeviceIndex device) override { native_.markCaptureBegin(device); }
  void markCaptureEnd(c10::DeviceIndex device) override { native_.markCaptureEnd(device); }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    c10::DataPtr pointer = native_.allocateWithAddress(bytes, address);
    use_door_deleter(pointer);
    return pointer;
  }
#endif
#if STALLOC_TORCH_MINOR >= 14
  bool supportsUserMetadata() override { return native_.supportsUserMetadata(); }
  void annotateMemory(const void* address, const std::string& metadata) override { annotate(address, metadata); }
#endif

 protected:
  // The functions whose parameters differ between versions.
  virtual void empty_cache(MempoolId_t pool) = 0;  // {0, 0}: all but private pools
  virtual native::SnapshotInfo take_snapshot(MempoolId_t pool, bool traces) = 0;
  virtual void configure_history(HistorySettings settings) = 0;
  virtual Context context_of(const void* address) = 0;
  virtual void annotate(const void* address, const std::string& metadata) = 0;
  // Gives a pointer of the native allocator the door's deleter, which all tensors must have.
  virtual void use_door_deleter(c10::DataPtr& pointer) = 0;

#if STALLOC_TORCH_MINOR < 8
  // In these versions the calling thread's context, instead of a parameter, says which pool is meant.
  static MempoolId_t active_pool() {
    c10::cuda::MemPool* pool = c10::cuda::MemPoolContext::getActiveMemPool();
    return pool == nullptr ? MempoolId_t{0, 0} : pool->id();
  }
#endif

  Context native_context_of([[maybe_unused]] const void* address) {
#if STALLOC_TORCH_MINOR >= 12
    return native_.getContextForPointer(address);
#else
    return nullptr;
#endif
  }
  void annotate_native([[maybe_unused]] const void* address, [[maybe_unused]] const std::string& metadata) {
#if STALLOC_TORCH_MINOR >= 14
    native_.annotateMemory(address, metadata);
#endif
  }
  void empty_native_cache([[maybe_unused]] MempoolId_t pool) {
#if STALLOC_TORCH_MINOR >= 8
    native_.emptyCache(pool);
#else
    native_.emptyCache();
#endif
  }
  native::SnapshotInfo native_snapshot([[maybe_unused]] MempoolId_t pool, [[maybe_unused]] bool traces) {
#if STALLOC_TORCH_MINOR >= 11
    return native_.snapshot(pool, traces);
#elif STALLOC_TORCH_MINOR >= 8
    return native_.snapshot(pool);
#else
    return native_.snapshot();
#endif
  }

  native::CUDAAllocator& native_;
};

}  // namespace stalloc::torch::door
