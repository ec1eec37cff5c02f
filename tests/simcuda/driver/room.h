// SPDX-License-Identifier: Apache-2.0
// What other calls do while a call waits for room in the queue of a stream.
//
// On an H200 (driver 580) more calls wait meanwhile than those that give the full stream work: creating and destroying
// streams and events, host functions on other streams, beginning a capture, work and records on the legacy stream,
// cuMemAlloc, and queries of the full stream. Stream-ordered requests, even on the full stream, frees on other streams
// and most other calls return at once. This was measured with tests/gpu/full_queue.cpp;
// docs/benchmarks/full-queue/calls-h200.txt has every call, and docs/decisions/17-full-queues.md says why it matters.
// Streams of another context were not measured, so calls here wait only for those of their own context.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

namespace simcuda {

// The calls that wait for room in the queues of a context's streams. Each finds room when the device has done a piece
// of work, or has passed over it, even if the context is destroyed meanwhile. Thread-safe.
class RoomWaits {
 public:
  // A call that waits for room in a full stream's queue, and then gives it work, during this object's lifetime.
  class Waiting {
   public:
    explicit Waiting(RoomWaits& all);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    RoomWaits& all_;
    const std::uint64_t number_;
  };

  // Waits until every call that waits for room now has found it and has given the stream its work. Pre: the thread
  // holds no lock of this driver.
  void wait();

 private:
  std::uint64_t begin();
  void end(std::uint64_t number);

  std::mutex mutex_;
  std::condition_variable ended_;
  std::set<std::uint64_t> waiting_;  // numbers of the calls, in the order in which they began
  std::uint64_t begun_ = 0;
};

}  // namespace simcuda
