#include "plan/layout/packed.h"

#include <algorithm>
#include <numeric>

#include "plan/packing/tenants.h"

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kLongLife = 16;
// Packing takes up to the square of this.
constexpr std::size_t kMostPacked = 8192;

// Whether all but synchronous requests are made on one stream, wherever they are freed.
bool one_stream(const Sequence& sequence) {
  std::uint32_t only = kEveryStream;
  for (const Item& item : sequence.items) {
    if (item.bytes == 0 || item.stream == kEveryStream) continue;
    if (only == kEveryStream) only = item.stream;
    if (item.stream != only) return false;
  }
  return true;
}

std::uint64_t life(const Tenant& tenant) {
  std::uint64_t sum = 0;
  for (const auto& [lower, upper] : tenant.spans) sum += upper - lower;
  return sum;
}

std::vector<std::size_t> make_order(const std::vector<Tenant>& tenants, std::uint64_t page, PackFirst first) {
  std::vector<std::pair<bool, std::uint64_t>> keys;
  for (const Tenant& tenant : tenants) {
    const std::uint64_t key = first == PackFirst::Longest ? life(tenant)
                              : first == PackFirst::Last  ? tenant.spans.back().second
                                                          : tenant.bytes;
    keys.emplace_back(tenant.bytes >= page, key);
  }
  std::vector<std::size_t> order(tenants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&keys](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
  return order;
}

// Those that live long.
TenantGroup choose(const Sequence& sequence) {
  TenantGroup chosen;
  for (auto& [stream, group] : make_tenants(sequence, StreamMode::Order)) {
    if (stream == kEveryStream) continue;
    for (std::size_t i = 0; i < group.tenants.size(); ++i) {
      if (group.tenants[i].spans.size() == 1 && life(group.tenants[i]) < kLongLife) continue;
      chosen.tenants.push_back(std::move(group.tenants[i]));
      chosen.slots.push_back(std::move(group.slots[i]));
    }
  }
  return chosen;
}

}  // namespace

std::optional<Packed> pack_long_lived(const Sequence& sequence, Range room, std::uint64_t page, PackFirst first) {
  if (!one_stream(sequence)) return std::nullopt;
  const TenantGroup group = choose(sequence);
  const std::vector<Tenant>& tenants = group.tenants;
  if (tenants.empty() || tenants.size() > kMostPacked) return std::nullopt;
  const std::vector<std::size_t> order = make_order(tenants, page, first);
  const std::optional<Packing> packing = GreedyPacker(tenants).pack(order, GreedyPacker::Gap::First, nullptr);
  if (!packing || packing->bytes > room.bytes()) return std::nullopt;

  Packed packed;
  packed.offsets.assign(sequence.items.size(), kNotPacked);
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    const std::uint64_t begin = room.begin + packing->offsets[i];
    for (const std::size_t slot : group.slots[i]) packed.offsets[slot] = begin;
    for (const auto& [lower, upper] : tenants[i].spans) {
      packed.lives.emplace_back(lower, Range{begin, begin + tenants[i].bytes});
    }
  }
  std::sort(packed.lives.begin(), packed.lives.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return packed;
}

}  // namespace stalloc::plan
