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
    if (origin.stream.handle == nullptr || origin.context != context) continue;
    origin = {};
    gate_.capture_ended();
  }
}

void Captures::add_origin(const Origin& origin) noexcept {
  const auto is_free = [](const Origin& each) { return each.stream.handle == nullptr; };
  const auto place = std::find_if(origins_.begin(), origins_.end(), is_free);
  if (place != origins_.end()) *place = origin;
}

Captures::Origin Captures::remove_origin(const StreamKey& stream) noexcept {
  const CUcontext context = stream.is_per_thread() ? cuda_.current_context() : nullptr;
  const auto is_it = [&](const Origin& origin) {
    return origin.stream == stream && (!stream.is_per_thread() || origin.context == context);
  };
  const auto place = std::find_if(origins_.begin(), origins_.end(), is_it);
  return stream.handle == nullptr || place == origins_.end() ? Origin{} : std::exchange(*place, {});
}

// Where captures may begin unseen, an end counts only if the beginning is known to have been counted.
void Captures::note_end(CUstream stream) noexcept {
  const bool was_counted = remove_origin(make_stream_key(stream, false)).stream.handle != nullptr;
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
