// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/sweep.h"

#include <algorithm>

namespace stalloc::plan {
namespace {

// Steps of growth for one request that are one page each.
constexpr int kSinglePages = 64;

// Every stream that some item is made on or freed on, in ascending order.
std::vector<std::uint32_t> streams_in(const Sequence& sequence) {
  std::vector<std::uint32_t> streams;
  for (const Item& item : sequence.items) {
    if (item.bytes == 0) continue;
    for (const std::uint32_t stream : {item.stream, item.owner}) {
      if (stream == kEveryStream || (!streams.empty() && streams.back() == stream)) continue;
      streams.push_back(stream);
    }
  }
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  return streams;
}

PagePlacement::Options placement_options(const Sequence& sequence, const LayoutOptions& options, std::size_t streams) {
  const bool synchronous = std::any_of(sequence.items.begin(), sequence.items.end(),
                                       [](const Item& item) { return item.bytes > 0 && item.stream == kEveryStream; });
  return {options.granularity, static_cast<StreamIndex>(streams), synchronous, options.streams == StreamMode::Order};
}

}  // namespace

Sweep::Sweep(const Sequence& sequence, const LayoutOptions& options, const Foresight& foresight)
    : sequence_(sequence),
      options_(options),
      foresight_(foresight),
      streams_(streams_in(sequence)),
      placement_(placement_options(sequence, options, streams_.size())) {}

StreamIndex Sweep::stream_of(std::size_t slot) const {
  const std::uint32_t stream = sequence_.items[slot].stream;
  if (stream == kEveryStream) return kSynchronous;
  const auto at = std::lower_bound(streams_.begin(), streams_.end(), stream);
  return static_cast<StreamIndex>(at - streams_.begin());
}

StreamIndex Sweep::owner_of(std::size_t slot) const {
  const Item& item = sequence_.items[slot];
  if (item.stream == kEveryStream) return kSynchronous;
  if (options_.streams == StreamMode::Isolate) return stream_of(slot);
  if (item.owner == kEveryStream) return kNoOwner;
  const auto at = std::lower_bound(streams_.begin(), streams_.end(), item.owner);
  return static_cast<StreamIndex>(at - streams_.begin());
}

bool Sweep::share(std::size_t a, std::size_t b) const {
  const std::uint32_t one = sequence_.items[a].stream;
  const std::uint32_t other = sequence_.items[b].stream;
  if (one == other) return true;
  return options_.streams == StreamMode::Order && one != kEveryStream && other != kEveryStream;
}

std::optional<Layout> Sweep::run(std::uint64_t pages, bool grow) {
  grow_ = grow;
  placement_.grow(pages);
  if (foresight_.synchronous > 0) placement_.keep_for_synchronous(foresight_.synchronous);
  const std::size_t slots = sequence_.items.size();
  layout_.places.resize(slots);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    if (is_early(slot) && !place(slot)) return std::nullopt;
  }
  for (std::size_t slot = 0; slot < slots; ++slot) {
    release_until(slot);
    if (slot == sequence_.prologue && !begin_body()) return std::nullopt;
    if (sequence_.items[slot].bytes > 0 && !is_early(slot) && !place(slot)) return std::nullopt;
  }
  layout_.pages = placement_.physical_bytes() / options_.granularity;
  layout_.stitched = placement_.stitched();
  return std::move(layout_);
}

bool Sweep::begin_body() {
  for (std::size_t slot = sequence_.prologue; slot < sequence_.body_end(); ++slot) {
    if (!is_arc(slot)) continue;
    const std::size_t released = sequence_.items[slot].upper - sequence_.body;
    const std::size_t before = sequence_.items[slot].twin;
    if (before != kNone) {
      layout_.places[slot] = layout_.places[before];
    } else {
      avoided_.clear();
      const bool taken = is_packed(slot) ? take_at(slot, {0, foresight_.packed->offsets[slot]}) : take(slot);
      if (!taken) return false;
      hold(slot, released);
    }
    Arc& arc = arcs_.emplace_back(Arc{slot, released, {}});
    placement_.translate(layout_.places[slot], sequence_.items[slot].bytes, arc.ranges);
  }
  return true;
}

bool Sweep::place(std::size_t slot) {
  const Item& item = sequence_.items[slot];
  avoided_.clear();
  if (is_arc(slot)) {
    if (!take_at(slot, layout_.places[slot])) return false;
  } else if (is_packed(slot)) {
    if (!take_at(slot, {0, foresight_.packed->offsets[slot]})) return false;
  } else {
    find_avoided(slot);
    const bool again = slot >= sequence_.body_end() && item.twin != kNone &&
                       sequence_.items[item.twin].bytes >= item.bytes && take_at(slot, layout_.places[item.twin]);
    if (!again && !take(slot)) return false;
  }
  if (!in_body(slot)) {
    hold(slot, item.upper);
  } else {
    hold(slot, std::max(item.tail, item.upper));
  }
  return true;
}

bool Sweep::take_at(std::size_t slot, Place place) {
  if (!placement_.take_at({sequence_.items[slot].bytes, stream_of(slot), Fit::BestLow, avoided_}, place)) return false;
  layout_.places[slot] = place;
  return true;
}

bool Sweep::take(std::size_t slot) {
  const StreamIndex stream = stream_of(slot);
  // The bytes kept for synchronous memory are at the low end.
  const Fit fit = stream == kSynchronous ? Fit::Lowest : foresight_.fits[slot];
  const PagePlacement::Ask ask{sequence_.items[slot].bytes, stream, fit, avoided_};
  std::optional<Place> place = placement_.take(ask);
  // First the pages that are missing at least, then page by page, and in larger steps after many pages.
  const std::uint64_t free = placement_.free_bytes(ask.stream);
  std::uint64_t missing = ask.bytes > free ? (ask.bytes - free + options_.granularity - 1) / options_.granularity : 1;
  for (int attempt = 0; !place && grow_; ++attempt) {
    placement_.grow(missing);
    missing = attempt < kSinglePages ? 1 : 2 * missing;
    place = placement_.take(ask);
  }
  if (place) layout_.places[slot] = *place;
  return place.has_value();
}

void Sweep::release_until(std::size_t slot) {
  while (!releases_.empty() && releases_.top().first <= slot) {
    const std::size_t freed = releases_.top().second;
    releases_.pop();
    placement_.give(layout_.places[freed], sequence_.items[freed].bytes, owner_of(freed));
  }
}

// The bytes of packed slots and of arcs that come while this slot lives, and of arcs it can never share with.
void Sweep::find_avoided(std::size_t slot) {
  const Item& item = sequence_.items[slot];
  const auto before = [](std::size_t at, const auto& life) { return at < life.first; };
  if (foresight_.packed) {
    const auto& lives = foresight_.packed->lives;
    const std::size_t upper = in_body(slot) ? std::max(item.upper, item.tail) : item.upper;
    auto next = std::upper_bound(lives.begin(), lives.end(), item.lower, before);
    for (; next != lives.end() && next->first < upper; ++next) avoided_.push_back(next->second);
  }
  if (!in_body(slot)) return;
  const auto avoid = [this](const Arc& arc) { avoided_.insert(avoided_.end(), arc.ranges.begin(), arc.ranges.end()); };
  auto next =
      std::upper_bound(arcs_.begin(), arcs_.end(), slot, [](std::size_t at, const Arc& arc) { return at < arc.slot; });
  for (; next != arcs_.end() && next->slot < item.upper; ++next) avoid(*next);
  if (placement_.kinds() < 2) return;
  for (const Arc& arc : arcs_) {
    if (!share(arc.slot, slot)) avoid(arc);
  }
}

}  // namespace stalloc::plan
