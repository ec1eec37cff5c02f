// SPDX-License-Identifier: Apache-2.0
// Stream captures: where they begin and end, and which streams join them (session/captures.h).
#include "interpose/hooks/actions.h"
#include "interpose/hooks/allocation.h"

namespace stalloc::hooks::captures {

CUresult end(const Call<CUresult(CUstream, CUgraph*)>& call, CUstream stream, CUgraph* graph,
             DefaultStream default_stream) noexcept {
  if (!Session::get().active()) return call.original(stream, graph);
  const CUstream named =
      stream == nullptr && default_stream == DefaultStream::PerThread ? CU_STREAM_PER_THREAD : stream;
  return Session::captures().end(named, [&] { return call.original(stream, graph); });
}

CUresult wait_event(const Call<CUresult(CUstream, CUevent, unsigned)>& call, CUstream stream, CUevent event,
                    unsigned flags, DefaultStream default_stream) noexcept {
  if (!Session::get().active()) return call.original(stream, event, flags);
  const StreamKey key = key_of(stream, default_stream);
  return Session::captures().wait_event(key, [&] { return call.original(stream, event, flags); });
}

}  // namespace stalloc::hooks::captures
