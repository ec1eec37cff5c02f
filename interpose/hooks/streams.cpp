// SPDX-License-Identifier: Apache-2.0
// Streams that the program creates and destroys.
#include "interpose/base/log.h"
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::streams {

void created(unsigned flags) noexcept {
  if ((flags & CU_STREAM_NON_BLOCKING) != 0 || !Heaps::note_blocking_stream()) return;
  log::debug("the program creates streams that synchronize with the legacy stream");
  if (Heaps* heaps = Session::known_active_heaps()) heaps->blocking_streams_exist();
}

CUresult destroy(const Call<CUresult(CUstream)>& call, CUstream stream) noexcept {
  Session& session = Session::get();
  if (record::Recorder* recorder = session.active() ? session.recorder() : nullptr) recorder->stream_destroyed(stream);
  if (Heaps* heaps = Session::active_heaps()) heaps->stream_destroyed(stream);
  if (!session.active()) return call.original(stream);
  return Session::captures().destroy_stream(stream, [&] { return call.original(stream); });
}

}  // namespace stalloc::hooks::streams
