// SPDX-License-Identifier: Apache-2.0
// A fake CUDA driver for tests of serving. It has no memory and only does the accounting: it checks that callers keep
// the contract of interpose/serve/driver/driver.h (otherwise it throws FakeDriver::Misuse, which ends the test
// program), knows the physical bytes of each address, orders streams in simulated time, and fails where a test says.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/driver.h"

namespace stalloc::test {

// A point in the work of a stream: all its work up to `step`.
struct Moment {
  std::size_t stream = 0;
  std::uint64_t step = 0;
};

class FakeDriver final : public serve::Driver {
 public:
  struct Misuse : std::logic_error {
    using std::logic_error::logic_error;
  };

  explicit FakeDriver(std::size_t page_bytes = 64 << 10, std::uint64_t memory_bytes = std::uint64_t{1} << 34);

  // The current context of every thread at first, and another context, for foreign streams.
  static CUcontext context() { return reinterpret_cast<CUcontext>(0x1000); }
  static CUcontext other_context() { return reinterpret_cast<CUcontext>(0x2000); }
  // A green context of the first one: its streams accept events of both.
  static CUcontext green_context() { return reinterpret_cast<CUcontext>(0x3000); }

  CUstream new_stream(CUcontext owner = context(), unsigned flags = CU_STREAM_NON_BLOCKING);
  // The context ends: none of its events may be used any more.
  void end_events_of(CUcontext context);
  // From now on, queries of the events that exist now fail.
  void lose_events_of(CUcontext context);
  void destroy_stream(CUstream stream);
  void set_capturing(CUstream stream, bool capturing);

  // Gives the stream work of the program. Returns the moment at which it ends.
  Moment work(StreamKey stream);
  // Completes all work that every stream has been given so far.
  void finish_all_work();
  // The same for the work that the stream, or the event, is ordered after.
  void finish_work_of(StreamKey stream);
  void finish_work_before(CUevent event);
  // True if work that `stream` is given from now on starts only after `moment`, whatever the device does.
  bool is_ordered(StreamKey stream, Moment moment);

  // Mappings consist of whole pages.
  [[nodiscard]] std::size_t page_bytes() const { return page_bytes_; }
  // The physical byte of an address, as handle number << 40 | offset; it must be mapped and accessible.
  std::uint64_t physical(CUdeviceptr address, int device = 0);

  // The idle bytes that CUDA's default pool keeps until it is trimmed.
  void keep_in_pool(std::uint64_t bytes);

  // The call that makes the counter `calls` reach `count` fails with `error`, and with it `times` calls in a row; 0: no
  // call fails.
  void fail_at(std::uint64_t count, CUresult error = CUDA_ERROR_OUT_OF_MEMORY, std::uint64_t times = 1);
  std::uint64_t calls() const { return calls_; }
  // Counts the calls that query how much memory is free.
  std::uint64_t memory_queries() const { return memory_queries_; }
  // Counts the calls that record, wait for or query events, or synchronize.
  std::uint64_t order_calls() const { return order_calls_; }
  std::uint64_t records() const { return records_; }     // of events
  std::size_t events() const { return events_.size(); }  // that exist
  std::function<void()> while_synchronizing;             // called during each wait for the context; may be empty
  // While it is set, another thread captures in global mode: frees that wait fail.
  std::atomic<bool> captures_globally{false};
  std::atomic<bool> refuses_to_map{false};
  std::atomic<bool> refuses_to_unmap{false};
  std::size_t most_plain_blocks = ~std::size_t{0};  // that can be allocated
  // Called before `bytes` bytes at an address are unmapped; may be empty.
  std::function<void(CUdeviceptr, std::size_t)> before_unmap;
  std::uint64_t memory_used();  // bytes of the device
  bool is_over(Moment moment);  // true if the work up to then is complete
  bool holds_no_memory();       // nothing is created or mapped
  bool holds_nothing();         // nor reserved
  bool is_clean();              // and no event exists

  CUresult granularity(int device, std::size_t* bytes) override;
  CUresult reserve(CUdeviceptr* base, std::size_t bytes) override;
  CUresult unreserve(CUdeviceptr base, std::size_t bytes) override;
  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, int device) override;
  CUresult release(CUmemGenericAllocationHandle handle) override;
  CUresult map(CUdeviceptr at, std::size_t bytes, CUmemGenericAllocationHandle handle) override;
  CUresult unmap(CUdeviceptr at, std::size_t bytes) override;
  CUresult set_access(CUdeviceptr at, std::size_t bytes, std::span<const int> devices) override;
  CUresult memory_info(std::size_t* free, std::size_t* total) override;
  CUresult allocate_plain(CUdeviceptr* at, std::size_t bytes) override;
  CUresult free_plain(CUdeviceptr at) override;
  CUresult export_handle(CUmemGenericAllocationHandle handle, int* file) override;
  CUresult import_handle(int file, CUmemGenericAllocationHandle* handle) override;
  CUresult trim_pools(int device) override;
  CUresult current_context(CUcontext* context) override;
  CUresult push_context(CUcontext context) override;
  CUresult pop_context() override;
  CUresult stream_context(CUstream stream, CUcontext* context) override;
  CUresult is_capturing(CUstream stream, bool* capturing) override;
  CUresult create_event(CUevent* event) override;
  CUresult destroy_event(CUevent event) override;
  CUresult record_event(CUevent event, CUstream stream) override;
  CUresult wait_event(CUstream stream, CUevent event) override;
  CUresult query_event(CUevent event) override;
  CUresult query_stream(CUstream stream) override;
  CUresult synchronize_context() override;

 private:
  // steps[T]: it is ordered after T's work up to that step.
  using Clock = std::vector<std::uint64_t>;
  struct Stream {
    StreamKey key;
    CUcontext context = nullptr;
    bool alive = true;
    bool capturing = false;
    Clock clock;
  };
  struct Event {
    CUcontext context = nullptr;
    bool recorded = false;
    Clock clock;
    bool lost = false;
  };
  struct Physical {
    std::size_t bytes = 0;
    bool held = true;
    std::size_t mappings = 0;
  };
  struct Mapping {
    std::size_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    std::set<int> devices;
  };

  bool fails();  // counts the call
  std::size_t index(StreamKey key, CUcontext context);
  std::size_t index(CUstream handle);
  Stream& usable(CUstream handle);
  Event& known(CUevent event);
  bool blocked_by_capture(const Stream& stream) const;
  bool is_finished(const Clock& clock) const;
  void advance(std::size_t stream);
  static bool has_reached(const Clock& clock, Moment moment);
  static void join(Clock& into, const Clock& from);
  CUresult wait_for_context(bool breaks_captures);

  std::recursive_mutex mutex_;
  std::size_t page_bytes_;
  std::uint64_t memory_bytes_;
  std::uint64_t memory_used_ = 0;
  std::uint64_t kept_in_pool_ = 0;  // of it
  CUdeviceptr next_address_ = CUdeviceptr{1} << 44;
  std::map<CUdeviceptr, std::size_t> reservations_;
  std::map<CUdeviceptr, Mapping> mappings_;
  std::map<CUmemGenericAllocationHandle, Physical> physical_;
  CUmemGenericAllocationHandle next_handle_ = 1;

  std::vector<Stream> streams_;
  std::vector<CUstream> free_handles_;  // handles of destroyed streams, which the next ones get
  std::unordered_map<CUevent, Event> events_;
  std::vector<CUevent> free_events_;  // likewise
  std::uintptr_t next_object_ = 0x10000;
  Clock finished_;
  std::map<CUdeviceptr, CUcontext> plain_;

  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> order_calls_{0};
  std::atomic<std::uint64_t> records_{0};
  std::atomic<std::uint64_t> memory_queries_{0};
  std::atomic<std::uint64_t> fail_at_{0};
  std::atomic<std::uint64_t> failures_{1};  // from then on
  std::atomic<CUresult> error_{CUDA_ERROR_OUT_OF_MEMORY};
};

}  // namespace stalloc::test
