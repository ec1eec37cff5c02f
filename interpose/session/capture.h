// Whether streams may be under capture. Asking the driver at each request costs as much as serving it, and most
// programs never capture anything.
#pragma once

#include <cuda.h>

#include <string_view>

namespace stalloc::capture {

// A stream is about to be captured, or may be from now on without our seeing it. For good: the driver is asked from
// then on. Thread-safe.
void seen() noexcept;

// The host looked up a function that is no hook of ours: a later kind of cuStreamBeginCapture counts as `seen`.
void looked_up(std::string_view symbol) noexcept;

// As cuStreamIsCapturing, without asking as long as nothing was seen. An unknown stream is then no error. Thread-safe.
CUresult status(CUstream stream, CUstreamCaptureStatus* status) noexcept;

}  // namespace stalloc::capture
