// SPDX-License-Identifier: Apache-2.0
// Which stream captures of the program may be under way.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "interpose/base/program_streams.h"
#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/capture_gate.h"
#include "interpose/session/cuda.h"

namespace stalloc {

// Thread-safe; never throws. `original` is CUDA's own function with the program's arguments, whose result is returned.
class Captures {
 public:
  constexpr explicit Captures(const Cuda& cuda) noexcept : cuda_(cuda) {}
  Captures(const Captures&) = delete;
  Captures& operator=(const Captures&) = delete;

  // The gate that hooks and heaps use.
  serve::CaptureGate& gate() noexcept { return gate_; }

  // False only when no stream is under capture. Lock-free, and calls no driver function.
  [[nodiscard]] bool may_be_active() const noexcept { return gate_.may_be_capturing(); }
  // True if no capture is known to be under way, while some may have begun unseen (`note_lookup`), whose ends are not
  // seen either. What is put off until captures are over would then be put off for good. Lock-free.
  [[nodiscard]] bool may_be_only_unseen() const noexcept { return gate_.only_unobserved(); }
  // True also when the driver will not say, as of the legacy stream during the capture of a blocking one.
  [[nodiscard]] bool may_be_captured(CUstream stream) const noexcept {
    return may_be_active() && status_by_driver(stream) != Status::Free;
  }
  // Whether CUDA allows an allocation or a free on a stream that is not under capture: CUDA_SUCCESS, or the error it
  // returns during a capture that forbids them (cudaThreadExchangeStreamCaptureMode documents which do). Like every
  // call that CUDA refuses for this reason, this query invalidates that capture.
  [[nodiscard]] CUresult permission() const noexcept { return may_be_active() ? permission_by_driver() : CUDA_SUCCESS; }

  // Whether a driver function of this name that is not hooked may begin captures, as a newer cuStreamBeginCapture does.
  [[nodiscard]] static bool may_begin_by(std::string_view symbol) noexcept;
  // The program has looked up a driver function that is not hooked, and found it. If it may begin captures, they may
  // begin unseen from now on.
  void note_lookup(std::string_view symbol) noexcept;

  // The program begins a capture of `stream`; null: of the calling thread's own default stream. CUDA's function may
  // wait for room in the queue of another stream, so it is called without the lock. Before it, the capture is noted,
  // lest another thread ends it first.
  template <class Original>
  CUresult begin(CUstream stream, Original original) noexcept {
    const StreamKey key = make_stream_key(stream, true);
    const serve::CaptureGate::CaptureLock change(gate_, key, !is_non_blocking(key.handle));
    gate_.capture_began();
    const Origin origin{key, cuda_.context_of_stream(key.handle)};
    locked([&] { add_origin(origin); });
    const CUresult result = original();
    if (result == CUDA_SUCCESS) return result;
    locked([&] { remove_origin(key); });
    gate_.capture_ended();
    return result;
  }
  // The program ends the capture of `stream`. Not every such call ends one: it may name a stream that joined a capture,
  // or come from the wrong thread. So an end counts where the driver says that the stream was captured before the call
  // and is not after it. Two threads may end the same capture: one waits for the other, lest both count it.
  template <class Original>
  CUresult end(CUstream stream, Original original) noexcept {
    const std::lock_guard lock(mutex_);
    const bool was_captured = may_be_active() && status_by_driver(stream) == Status::Captured;
    const CUresult result = original();
    if (was_captured && status_by_driver(stream) == Status::Free) note_end(stream);
    return result;
  }
  // The program destroys `stream`. That ends the capture which began on it. The capture that it has only joined becomes
  // invalid, but lasts until it is ended. CUDA's function may wait for room in the queue of another stream, so it is
  // called without the lock; after it, CUDA may give the handle to another stream.
  template <class Original>
  CUresult destroy_stream(CUstream stream, Original original) noexcept {
    if (!may_be_active()) return original();
    const Origin origin = locked([&] { return remove_origin({stream, 0}); });
    const CUresult result = original();
    if (origin.stream.handle == nullptr) return result;
    if (result == CUDA_SUCCESS) {
      gate_.capture_ended();
    } else {
      locked([&] { add_origin(origin); });
    }
    return result;
  }
  // The context has ended, and with it all captures that began on its streams. Null: nothing has.
  void context_ended(CUcontext context) noexcept;
  // The program makes `stream` wait for an event. If the event is of a captured stream, the waiting stream joins the
  // capture.
  template <class Original>
  CUresult wait_event(const StreamKey& stream, Original original) noexcept {
    if (!may_be_active()) return original();
    const serve::CaptureGate::CaptureLock change(gate_, stream, !is_non_blocking(stream.handle));
    return original();
  }

 private:
  enum class Status : std::uint8_t { Free, Captured, Unknown };
  // Of more captures at a time than this, an end together with their stream or context is not noticed.
  static constexpr std::size_t kMostOrigins = 32;
  // A stream on which a capture has begun that is not known to have ended. A thread has a default stream of its own in
  // each context.
  struct Origin {
    StreamKey stream;  // without a handle: none
    CUcontext context = nullptr;
  };
  template <class Act>
  auto locked(Act act) noexcept {
    const std::lock_guard lock(mutex_);
    return act();
  }
  // Pre of these three: mutex_ is held. `remove_origin` returns what it has removed; one without a stream: there is
  // none. Of a thread's own default stream, it is that of the current context.
  void add_origin(const Origin& origin) noexcept;
  Origin remove_origin(const StreamKey& stream) noexcept;
  void note_end(CUstream stream) noexcept;
  [[nodiscard]] Status status_by_driver(CUstream stream) const noexcept;
  [[nodiscard]] CUresult permission_by_driver() const noexcept;

  const Cuda& cuda_;
  serve::CaptureGate gate_;
  std::mutex mutex_;  // guards the origins; held while a capture ends, so that each end is counted once
  std::array<Origin, kMostOrigins> origins_{};
};

}  // namespace stalloc
