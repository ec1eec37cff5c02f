// SPDX-License-Identifier: Apache-2.0
// Streams that the program creates and destroys.
#include "interpose/base/log.h"
#include "interpose/base/program_streams.h"
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::streams {

void created(CUstream stream, unsigned flags) noexcept {
  note_stream_created(stream, flags);
  Heaps::note_stream();
  Heaps* heaps = Session::known_active_heaps();
  if (heaps != nullptr) heaps->create_events_ahead();
  if ((flags & CU_STREAM_NON_BLOCKING) != 0 || !Heaps::note_blocking_stream()) return;
  log::debug("the program creates streams that synchronize with the legacy stream");
  if (heaps != nullptr) heaps->blocking_streams_exist();
}

CUresult create_green(const Call<CUresult(CUstream*, struct CUgreenCtx_st*, unsigned, int)>& call, CUstream* stream,
                      struct CUgreenCtx_st* context, unsigned flags, int priority) noexcept {
  const CUresult result = device_memory::call_with_retry(call, 0, stream, context, flags, priority);
  if (result == CUDA_SUCCESS) note_stream_created(*stream, flags);
  return result;
}

CUresult destroy(const Call<CUresult(CUstream)>& call, CUstream stream) noexcept {
  Session& session = Session::get();
  if (record::Recorder* recorder = session.active() ? session.recorder() : nullptr) recorder->stream_destroyed(stream);
  if (Heaps* heaps = Session::active_heaps()) heaps->stream_destroyed(stream);
  if (!session.active()) return call.original(stream);
  const bool is_noted = note_stream_destroyed(stream);
  const CUresult result = Session::captures().destroy_stream(stream, [&] { return call.original(stream); });
  if (is_noted && result != CUDA_SUCCESS) note_stream_kept(stream);
  return result;
}

}  // namespace stalloc::hooks::streams
