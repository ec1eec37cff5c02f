// Stream captures: where they begin and end, and which streams join them (serve/driver/capture_gate.h).
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::captures {

// Not every end ends a capture: it may be called for a stream that joined one, or by the wrong thread.
CUresult end(const Call<CUresult(CUstream, CUgraph*)>& call, CUstream stream, CUgraph* graph, Default zero) noexcept {
  const CUstream named = stream == nullptr && zero == Default::PerThread ? CU_STREAM_PER_THREAD : stream;
  const bool was_capturing = capture::is_capturing(named);
  const CUresult result = call.original(stream, graph);
  if (was_capturing && !capture::is_capturing(named)) capture::gate().ended();
  return result;
}

CUresult wait_event(const Call<CUresult(CUstream, CUevent, unsigned)>& call, CUstream stream, CUevent event,
                    unsigned flags) noexcept {
  if (!capture::gate().may_be_capturing()) return call.original(stream, event, flags);
  const serve::CaptureGate::Change change(capture::gate());
  return call.original(stream, event, flags);
}

}  // namespace stalloc::hooks::captures
