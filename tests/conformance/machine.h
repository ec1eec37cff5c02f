// SPDX-License-Identifier: Apache-2.0
// Shared by the checks: a device with its primary context, calls that must succeed, patterns, pinned memory, and gates.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tests/conformance/driver.h"

namespace stalloc::conformance {

inline constexpr std::size_t kMiB = 1 << 20;
inline constexpr std::size_t kGiB = 1 << 30;
inline constexpr std::size_t kPage = 2 * kMiB;         // the driver maps memory in pages of this size
inline constexpr std::size_t kSomeBytes = 3 * kMiB;    // for memory whose size does not matter
inline constexpr CUdeviceptr kNowhere = 0x7654321000;  // an address that is nobody's

// A device and its primary context. Every function throws std::runtime_error, one line, when CUDA refuses. Thread-safe.
class Machine {
 public:
  explicit Machine(const Driver& driver, CUdevice device = 0);

  const Driver& cuda;
  const CUdevice device;

  // Retains the primary context, once more at each call, and makes it current in this thread.
  void enter();
  // Makes the primary context current in another thread of the program.
  void join() const;
  // Undoes one `enter`; the last `leave` ends the primary context. No context is then current in this thread.
  void leave();
  // Ends the primary context, with all that is in it, and begins it again.
  void reset();

  void must(CUresult result, const char* what) const;
  [[nodiscard]] std::string name(CUresult result) const;

  [[nodiscard]] CUdeviceptr allocate(std::size_t bytes, CUstream stream) const;  // stream-ordered, as `free`
  [[nodiscard]] CUdeviceptr allocate_plain(std::size_t bytes) const;
  void free(CUdeviceptr at, CUstream stream) const;
  void free_plain(CUdeviceptr at) const;

  [[nodiscard]] CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) const;
  void destroy(CUstream stream) const;
  void wait(CUstream stream) const;
  // Makes later work on `later` wait for what is queued on `earlier`.
  void order(CUstream earlier, CUstream later) const;

  // Fills the range with `pattern`, or with its lowest byte where the size is not a multiple of four.
  void fill(CUdeviceptr at, std::size_t bytes, std::uint32_t pattern, CUstream stream) const;
  void read(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) const;

  [[nodiscard]] std::size_t free_bytes() const;
  // The memory of the device, less what a `Smaller` holds.
  [[nodiscard]] std::size_t total_bytes() const;
  [[nodiscard]] CUmemoryPool default_pool() const;
  // A pool of at most `most` bytes; 0: no limit.
  [[nodiscard]] CUmemoryPool make_pool(CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE,
                                       std::size_t most = 0) const;
  // Sets how much free memory a pool keeps at synchronizations: all or none.
  void keep_all(CUmemoryPool pool, bool keep) const;
  // Waits for everything, and gives back all that the default pool keeps.
  void settle() const;
  [[nodiscard]] cuuint64_t ask(CUmemoryPool pool, CUmemPool_attribute attribute) const;

 private:
  friend class Smaller;

  CUcontext context_ = nullptr;
  std::size_t withheld_bytes_ = 0;
};

// Makes the device smaller during its lifetime by holding all memory beyond `bytes`. A driver clears memory before it
// gives it out, so checks that take most of a large device again and again would take minutes. Holds nothing when the
// device is no larger, or the driver has no cuMemCreate. Pre: the context outlives this object.
class Smaller {
 public:
  Smaller(Machine& machine, std::size_t bytes);
  ~Smaller();
  Smaller(const Smaller&) = delete;
  Smaller& operator=(const Smaller&) = delete;

 private:
  Machine& machine_;
  CUmemGenericAllocationHandle handle_ = 0;
};

// Whether all `count` bytes are what `fill` writes.
bool holds(const void* bytes, std::size_t count, std::uint32_t pattern);

// Runs `work` in a thread of its own, with the primary context current there, and waits for its end. An exception that
// it throws is thrown again here.
void in_thread(const Machine& machine, const std::function<void()>& work);

// A pattern that differs from tensor to tensor and has no zero byte.
std::uint32_t pattern_of(std::uint64_t tensor);

// Pinned host memory, which copies write in stream order.
class Pinned {
 public:
  Pinned(const Machine& machine, std::size_t bytes);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  void* data() const { return memory_; }

 private:
  const Machine& machine_;
  void* memory_ = nullptr;
};

inline constexpr int kGateMs = 1'000;  // how long most gates stay shut at most

// Work that holds a stream until the gate is opened, or until `longest_ms` have passed: a driver may make any call wait
// for the device, and the program could then never open the gate.
class Gate {
 public:
  Gate(const Machine& machine, CUstream stream, int longest_ms);
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Opens the gate and returns when the stream has passed it. Idempotent.
  void open();
  // True when the gate was not opened in time. Known after `open`.
  [[nodiscard]] bool timed_out() const { return timed_out_; }

 private:
  static void CUDA_CB hold(void* self);

  const int longest_ms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool passed_ = false;
  bool timed_out_ = false;
};

}  // namespace stalloc::conformance
