#include "plan/placement/growth.h"

#include <algorithm>
#include <bit>

#include "plan/placement/units.h"

namespace stalloc::plan {
namespace {

// Chosen with tests/bench/replay_policy.py on recorded training runs.
constexpr std::uint64_t kSmallHandlePages = 2;         // or,
constexpr std::uint64_t kSmallHandlesHeld = 2048;      // if more, this part of what is held
constexpr std::uint64_t kHandlesARequest = 2;          // at least so many a request
constexpr std::uint64_t kHugePages = 256;              // requests from so many pages on get larger handles,
constexpr std::uint64_t kHandlesAHugeRequest = 60;     // at least so many a request,
constexpr std::uint64_t kHandlesHeld = 768;            // each at most this part of what is held,
constexpr std::uint64_t kLargestPages = 10;            // and at most so many pages or,
constexpr std::uint64_t kLargestHeld = 2048;           // if more, this part of what is held
constexpr std::uint64_t kDevicePart = 16;              // requests of at least this part of the device's memory
constexpr std::uint64_t kHandlesADeviceRequest = 128;  // have about so many handles
constexpr std::uint64_t kFinePages = 8;  // from this size on in steps of kStepPages, below in powers of two
constexpr std::uint64_t kStepPages = 2;

constexpr std::uint64_t kFirstPages = 8;      // handles of the first requests, or,
constexpr std::uint64_t kFirstHeld = 32;      // if less, this part of what is held
constexpr std::uint64_t kLargeFreePages = 2;  // a free of so many pages is large

constexpr std::uint64_t kStrandedHeld = 250;  // where more than this part of what is held is stranded,
constexpr std::uint64_t kSmallerBy = 2;       // handles are smaller

constexpr std::uint64_t kLookedAtEvery = 1024;  // requests
constexpr std::uint64_t kFreeWhileFast = 32;    // the part of what is held that may be free
constexpr std::uint64_t kFreeElse = 256;

std::uint64_t handle_bytes(std::uint64_t request, std::uint64_t held, std::uint64_t page) {
  const std::uint64_t small = std::max(kSmallHandlePages * page, held / kSmallHandlesHeld);
  if (request < kHugePages * page) return std::min(small, std::max(request / kHandlesARequest, page));
  const std::uint64_t largest = std::max(kLargestPages * page, held / kLargestHeld);
  return std::max(small, std::min({request / kHandlesAHugeRequest, held / kHandlesHeld, largest}));
}

// The largest of the sizes that are used.
std::uint64_t rounded_down(std::uint64_t bytes, std::uint64_t page) {
  if (bytes < kFinePages * page) return std::bit_floor(bytes);
  return bytes / (kStepPages * page) * (kStepPages * page);
}

}  // namespace

std::vector<std::uint64_t> new_handle_sizes(const Growth& growth, std::uint64_t page, std::uint64_t largest) {
  const std::uint64_t need = round_up(growth.missing, page);
  const std::uint64_t held = growth.held + need;
  std::uint64_t best = handle_bytes(growth.request, held, page);
  if (growth.first) best = std::max(best, std::min(kFirstPages * page, held / kFirstHeld));
  if (growth.stranded > held / kStrandedHeld) best = std::max(best / kSmallerBy, page);
  std::uint64_t bytes = rounded_down(std::min(best, std::max(largest, page)), page);
  if (growth.device > 0 && growth.request >= growth.device / kDevicePart) {
    bytes = std::max(bytes, std::bit_floor(growth.request / kHandlesADeviceRequest));
  }
  std::vector<std::uint64_t> handles;
  for (std::uint64_t left = need; left > 0; left -= bytes) {
    while (bytes > left) bytes = std::bit_floor(bytes - 1);
    handles.push_back(bytes);
  }
  return handles;
}

bool is_large_free(std::uint64_t bytes, std::uint64_t page) noexcept { return bytes >= kLargeFreePages * page; }

bool GrowthPace::spares_stitching(std::uint64_t request, std::uint64_t held, std::uint64_t free) noexcept {
  if (request - looked_at_ >= kLookedAtEvery) {
    looked_at_ = request;
    before_ = last_;
    last_ = held;
  }
  const bool fast = held / 2 > before_;  // it doubles
  return free <= held / (fast ? kFreeWhileFast : kFreeElse);
}

}  // namespace stalloc::plan
