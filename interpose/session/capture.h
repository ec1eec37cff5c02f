// What the process knows of stream captures.
#pragma once

#include <cuda.h>

#include <string_view>

#include "interpose/serve/driver/capture_gate.h"

namespace stalloc::capture {

// The one that hooks and heaps go through.
serve::CaptureGate& gate() noexcept;

// The host looked up a function that is no hook of ours: a later kind of cuStreamBeginCapture may begin captures
// unseen. Thread-safe.
void looked_up(std::string_view symbol) noexcept;

// True also when the driver will not say, as of the legacy stream during the capture of a blocking one. Thread-safe.
bool is_capturing(CUstream stream) noexcept;

// Whether CUDA allows an allocation or a free on a stream that is not under capture: CUDA_SUCCESS, or the error it
// returns during a capture that forbids them (cudaThreadExchangeStreamCaptureMode documents which do). Like every call
// that CUDA refuses so, asking invalidates that capture. Thread-safe.
CUresult permission() noexcept;

}  // namespace stalloc::capture
