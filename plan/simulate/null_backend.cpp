// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/null_backend.h"

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kOffsets = 4;  // physical offsets for each kind of handles, in multiples of what lives at once
constexpr std::uint64_t kSparePages = 64;                     // and beside that
constexpr std::uint64_t kViewBytes = std::uint64_t{1} << 62;  // addresses for stitched views: more than are ever used

}  // namespace

SimulatedAllocator::Options simulation_options(std::uint64_t page, std::uint64_t live_bytes, const OnlinePolicy& policy,
                                               CrossStream cross_stream) {
  SimulatedAllocator::Options options;
  options.cross_stream = cross_stream;
  options.view_bytes = kViewBytes;
  HandlePlacement::Options& placement = options.placement;
  placement.page = page;
  const std::uint64_t part = round_up(kOffsets * live_bytes, placement.page) + kSparePages * placement.page;
  placement.step_plan = {0, part};
  placement.large = {part + placement.page, 2 * part + placement.page};
  placement.small = {2 * part + 2 * placement.page, 3 * part + 2 * placement.page};
  placement.policy = policy;
  return options;
}

template class MappedMemory<NullBackend>;
template class OnlineAllocator<NullBackend>;

}  // namespace stalloc::plan
