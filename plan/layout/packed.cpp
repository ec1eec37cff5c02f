// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/packed.h"

#include <algorithm>
#include <numeric>

#include "plan/packing/buffers.h"

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kLongLife = 16;

// Whether all requests, except synchronous ones, allocate on one stream. The streams of their frees do not matter.
bool one_stream(const Sequence& sequence) {
  std::uint32_t only = kEveryStream;
  for (const SequenceSlot& entry : sequence.slots) {
    if (entry.bytes == 0 || entry.allocation_stream == kEveryStream) continue;
    if (only == kEveryStream) only = entry.allocation_stream;
    if (entry.allocation_stream != only) return false;
  }
  return true;
}

std::uint64_t life(const Buffer& buffer) {
  std::uint64_t sum = 0;
  for (const auto& [lower, upper] : buffer.spans) sum += upper - lower;
  return sum;
}

std::vector<std::size_t> make_order(const std::vector<Buffer>& buffers, std::uint64_t page, PackFirst first) {
  std::vector<std::pair<bool, std::uint64_t>> keys;
  for (const Buffer& buffer : buffers) {
    const std::uint64_t key = first == PackFirst::Longest ? life(buffer)
                              : first == PackFirst::Last  ? buffer.spans.back().second
                                                          : buffer.bytes;
    keys.emplace_back(buffer.bytes >= page, key);
  }
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&keys](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
  return order;
}

bool lives_long(const Buffer& buffer) {
  return std::any_of(buffer.spans.begin(), buffer.spans.end(),
                     [](const auto& span) { return span.second - span.first >= kLongLife; });
}

// Those that live long.
BufferGroup choose(const Sequence& sequence) {
  BufferGroup chosen;
  for (auto& [stream, group] : make_buffers(sequence, StreamMode::Order)) {
    if (stream == kEveryStream) continue;
    for (std::size_t i = 0; i < group.buffers.size(); ++i) {
      if (!sequence.wraps(group.slots[i].front()) && !lives_long(group.buffers[i])) continue;
      chosen.buffers.push_back(std::move(group.buffers[i]));
      chosen.slots.push_back(std::move(group.slots[i]));
    }
  }
  return chosen;
}

}  // namespace

std::optional<Packed> pack_long_lived(const Sequence& sequence, Range room, std::uint64_t page, PackFirst first,
                                      std::size_t most) {
  if (!one_stream(sequence)) return std::nullopt;
  const BufferGroup group = choose(sequence);
  const std::vector<Buffer>& buffers = group.buffers;
  if (buffers.empty() || buffers.size() > most) return std::nullopt;
  const std::vector<std::size_t> order = make_order(buffers, page, first);
  const std::optional<Packing> packing = GreedyPacker(buffers).pack(order, GreedyPacker::Gap::First, nullptr);
  if (!packing || packing->bytes > room.bytes()) return std::nullopt;

  Packed packed;
  packed.offsets.assign(sequence.slots.size(), kNotPacked);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::uint64_t begin = room.begin + packing->offsets[i];
    for (const std::size_t slot : group.slots[i]) packed.offsets[slot] = begin;
    for (const auto& [lower, upper] : buffers[i].spans) {
      packed.lives.emplace_back(lower, Range{begin, begin + buffers[i].bytes});
    }
  }
  std::sort(packed.lives.begin(), packed.lives.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return packed;
}

}  // namespace stalloc::plan
