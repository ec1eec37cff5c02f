// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/sweep.h"

#include <algorithm>

namespace stalloc::plan {
namespace {

// Steps of growth for one request that are one page each.
constexpr int kSinglePages = 64;
// As many wrapped slots are looked at in the time in which a range is examined.
constexpr std::size_t kWrappedPerExamined = 16;

// Every stream on which a slot is allocated or freed, in ascending order.
std::vector<std::uint32_t> streams_in(const Sequence& sequence) {
  std::vector<std::uint32_t> streams;
  for (const SequenceSlot& entry : sequence.slots) {
    if (entry.bytes == 0) continue;
    for (const std::uint32_t stream : {entry.allocation_stream, entry.free_stream}) {
      if (stream == kEveryStream || (!streams.empty() && streams.back() == stream)) continue;
      streams.push_back(stream);
    }
  }
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  return streams;
}

PagePlacement::Options placement_options(const Sequence& sequence, const LayoutOptions& options, std::size_t streams) {
  const bool synchronous = std::any_of(sequence.slots.begin(), sequence.slots.end(), [](const SequenceSlot& entry) {
    return entry.bytes > 0 && entry.allocation_stream == kEveryStream;
  });
  return {options.granularity, static_cast<StreamIndex>(streams), synchronous, options.streams == StreamMode::Order};
}

}  // namespace

Sweep::Sweep(const Sequence& sequence, const LayoutOptions& options, const SweepHints& hints,
             std::uint64_t most_examined)
    : sequence_(sequence),
      options_(options),
      hints_(hints),
      most_examined_(most_examined),
      streams_(streams_in(sequence)),
      placement_(placement_options(sequence, options, streams_.size())) {}

StreamIndex Sweep::stream_of(std::size_t slot) const {
  const std::uint32_t stream = sequence_.slots[slot].allocation_stream;
  if (stream == kEveryStream) return kSynchronous;
  const auto at = std::lower_bound(streams_.begin(), streams_.end(), stream);
  return static_cast<StreamIndex>(at - streams_.begin());
}

StreamIndex Sweep::owner_of(std::size_t slot) const {
  const SequenceSlot& entry = sequence_.slots[slot];
  if (entry.allocation_stream == kEveryStream) return kSynchronous;
  if (options_.streams == StreamMode::Isolate) return stream_of(slot);
  if (entry.free_stream == kEveryStream) return kNoOwner;
  const auto at = std::lower_bound(streams_.begin(), streams_.end(), entry.free_stream);
  return static_cast<StreamIndex>(at - streams_.begin());
}

bool Sweep::share(std::size_t a, std::size_t b) const {
  const std::uint32_t one = sequence_.slots[a].allocation_stream;
  const std::uint32_t other = sequence_.slots[b].allocation_stream;
  if (one == other) return true;
  return options_.streams == StreamMode::Order && one != kEveryStream && other != kEveryStream;
}

std::optional<Layout> Sweep::run(std::uint64_t pages, bool grow) {
  grow_ = grow;
  placement_.grow(pages);
  if (hints_.synchronous > 0) placement_.keep_for_synchronous(hints_.synchronous);
  const std::size_t slots = sequence_.slots.size();
  layout_.places.resize(slots);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    if (is_early(slot) && !place(slot)) return std::nullopt;
  }
  for (std::size_t slot = 0; slot < slots; ++slot) {
    release_until(slot);
    if (slot == sequence_.prologue && !begin_body()) return std::nullopt;
    if (sequence_.slots[slot].bytes > 0 && !is_early(slot) && !place(slot)) return std::nullopt;
  }
  layout_.pages = placement_.physical_bytes() / options_.granularity;
  layout_.stitched = placement_.stitched();
  return std::move(layout_);
}

bool Sweep::begin_body() {
  for (std::size_t slot = sequence_.prologue; slot < sequence_.body_end(); ++slot) {
    if (!wraps(slot)) continue;
    if (ends_early()) return false;
    const std::size_t released = sequence_.slots[slot].upper - sequence_.body;
    const std::size_t before = sequence_.slots[slot].twin;
    if (before != kNone) {
      layout_.places[slot] = layout_.places[before];
    } else {
      avoided_.clear();
      const bool taken = is_packed(slot) ? take_at(slot, {0, hints_.packed->offsets[slot]}) : take(slot);
      if (!taken) return false;
      hold(slot, released);
    }
    WrappedSlot& wrapped = wrapped_.emplace_back(WrappedSlot{slot, released, {}});
    placement_.translate(layout_.places[slot], sequence_.slots[slot].bytes, wrapped.ranges);
  }
  return true;
}

bool Sweep::place(std::size_t slot) {
  if (ends_early()) return false;
  const SequenceSlot& entry = sequence_.slots[slot];
  avoided_.clear();
  if (wraps(slot)) {
    if (!take_at(slot, layout_.places[slot])) return false;
  } else if (is_packed(slot)) {
    if (!take_at(slot, {0, hints_.packed->offsets[slot]})) return false;
  } else {
    find_avoided(slot);
    const bool again = slot >= sequence_.body_end() && entry.twin != kNone &&
                       sequence_.slots[entry.twin].bytes >= entry.bytes && take_at(slot, layout_.places[entry.twin]);
    if (!again && !take(slot)) return false;
  }
  if (!sequence_.in_body(slot)) {
    hold(slot, entry.upper);
  } else {
    hold(slot, std::max(entry.tail, entry.upper));
  }
  return true;
}

bool Sweep::take_at(std::size_t slot, Place place) {
  if (!placement_.take_at({sequence_.slots[slot].bytes, stream_of(slot), Fit::BestLow, avoided_}, place)) return false;
  layout_.places[slot] = place;
  return true;
}

bool Sweep::take(std::size_t slot) {
  const StreamIndex stream = stream_of(slot);
  // The bytes kept for synchronous memory are at the low end.
  const Fit fit = stream == kSynchronous ? Fit::Lowest : hints_.fits[slot];
  const PagePlacement::Request request{sequence_.slots[slot].bytes, stream, fit, avoided_};
  std::optional<Place> place = placement_.take(request);
  // First the pages that are missing at least, then page by page, and in larger steps after many pages.
  const std::uint64_t free = placement_.free_bytes(request.stream);
  std::uint64_t missing =
      request.bytes > free ? (request.bytes - free + options_.granularity - 1) / options_.granularity : 1;
  for (int attempt = 0; !place && grow_ && !ends_early(); ++attempt) {
    placement_.grow(missing);
    missing = attempt < kSinglePages ? 1 : 2 * missing;
    place = placement_.take(request);
  }
  if (place) layout_.places[slot] = *place;
  return place.has_value();
}

void Sweep::release_until(std::size_t slot) {
  while (!releases_.empty() && releases_.top().first <= slot) {
    const std::size_t freed = releases_.top().second;
    releases_.pop();
    placement_.give(layout_.places[freed], sequence_.slots[freed].bytes, owner_of(freed));
  }
}

// Collects the bytes of packed and of wrapped slots that are requested while this slot lives, and of wrapped slots with
// which it can never share bytes.
void Sweep::find_avoided(std::size_t slot) {
  const SequenceSlot& entry = sequence_.slots[slot];
  const auto before = [](std::size_t at, const auto& life) { return at < life.first; };
  if (hints_.packed) {
    const auto& lives = hints_.packed->lives;
    const std::size_t upper = sequence_.in_body(slot) ? std::max(entry.upper, entry.tail) : entry.upper;
    auto next = std::upper_bound(lives.begin(), lives.end(), entry.lower, before);
    for (; next != lives.end() && next->first < upper; ++next) avoided_.push_back(next->second);
  }
  examined_ += 1 + avoided_.size();
  if (!sequence_.in_body(slot)) return;
  const auto avoid = [this](const WrappedSlot& wrapped) {
    avoided_.insert(avoided_.end(), wrapped.ranges.begin(), wrapped.ranges.end());
  };
  auto next = std::upper_bound(wrapped_.begin(), wrapped_.end(), slot,
                               [](std::size_t at, const WrappedSlot& wrapped) { return at < wrapped.slot; });
  for (; next != wrapped_.end() && next->slot < entry.upper; ++next) avoid(*next);
  if (placement_.kinds() < 2) return;
  examined_ += wrapped_.size() / kWrappedPerExamined;
  for (const WrappedSlot& wrapped : wrapped_) {
    if (!share(wrapped.slot, slot)) avoid(wrapped);
  }
}

}  // namespace stalloc::plan
