// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/captures.h"

#include <algorithm>
#include <utility>

#include "interpose/base/program_streams.h"

namespace stalloc {

bool Captures::may_begin_by(std::string_view symbol) noexcept { return symbol.starts_with("cuStreamBegin"); }

void Captures::note_lookup(std::string_view symbol) noexcept {
  if (may_begin_by(symbol)) gate_.may_begin_unobserved();
}

void Captures::context_ended(CUcontext context) noexcept {
  if (context == nullptr || !may_be_active()) return;
  const std::lock_guard lock(mutex_);
  for (Origin& origin : origins_) {
    if (origin.stream == nullptr || origin.context != context) continue;
    origin = {};
    gate_.capture_ended();
  }
}

void Captures::add_origin(const Origin& origin) noexcept {
  const auto is_free = [](const Origin& each) { return each.stream == nullptr; };
  const auto place = std::find_if(origins_.begin(), origins_.end(), is_free);
  if (place != origins_.end()) *place = origin;
}

Captures::Origin Captures::remove_origin(CUstream stream) noexcept {
  const auto is_it = [stream](const Origin& origin) { return origin.stream == stream; };
  const auto place = std::find_if(origins_.begin(), origins_.end(), is_it);
  return stream == nullptr || place == origins_.end() ? Origin{} : std::exchange(*place, {});
}

// Where captures may begin unseen, an end counts only if the beginning is known to have been counted. All threads' own
// default streams have one handle, so that of these it is not known.
void Captures::note_end(CUstream stream) noexcept {
  const bool was_counted = remove_origin(stream).stream != nullptr && stream != CU_STREAM_PER_THREAD;
  if (was_counted || !gate_.any_unobserved()) gate_.capture_ended();
}

Captures::Status Captures::status_by_driver(CUstream stream) const noexcept {
  if (is_destroyed(stream)) return Status::Unknown;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (cuda_.capture_status(stream, &status) != CUDA_SUCCESS) return Status::Unknown;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? Status::Free : Status::Captured;
}

CUresult Captures::permission_by_driver() const noexcept {
  return cuda_.trim_nothing(cuda_.default_pool(cuda_.current_device()));
}

}  // namespace stalloc
