// SPDX-License-Identifier: Apache-2.0
// The plan in memory: the tables of schemas/plan.fbs as plain structs.
// Written by the planner, read by the tool and the interposer.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/placement/units.h"

namespace stalloc::plan {

// Whether a device's memory may have pages of so many bytes. CUDA's granularities are powers of two; those of a
// terabyte and more would make sums overflow. kGranularityRule says the same in words.
inline constexpr std::uint64_t kMostGranularity = std::uint64_t{1} << 40;
inline constexpr const char* kGranularityRule = "a power of two from 512 bytes to 1 TiB";
constexpr bool is_granularity(std::uint64_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kUnitBytes && bytes <= kMostGranularity;
}

enum class SlotKind : std::uint8_t { Static = 0, Persistent = 1, Dynamic = 2, PassThrough = 3 };

// One request and its place: bytes [offset, offset + size) of a view, for the lifetime [lower, upper).
// Fields as in schemas/plan.fbs.
struct Slot {
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  std::uint64_t offset = 0;
  std::uint64_t lower = 0;
  std::uint64_t upper = 0;
  std::uint32_t view = 0;
  std::uint32_t stream = 0;
  SlotKind kind = SlotKind::Static;
  bool event_on_free = false;
};

// A slot whose bytes another stream has freed last.
struct Wait {
  std::uint32_t slot = 0;   // its stream waits before the bytes are used
  std::uint32_t freed = 0;  // the slot whose free it waits for
};

// A range of addresses over handles that follow one another. View 0 is the home view, with every handle once in order.
struct View {
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> handles;  // indices into DevicePlan::handles
};

// The slots of one device: a prologue, a body that repeats, and an epilogue.
struct DevicePlan {
  std::uint32_t device = 0;
  std::uint64_t granularity = 0;
  std::uint64_t physical_bytes = 0;
  std::uint64_t peak_live_bytes = 0;
  std::vector<std::uint64_t> handles;  // bytes of each
  std::vector<View> views;
  std::vector<Slot> slots;
  std::uint32_t prologue = 0;  // number of slots
  std::uint32_t body = 0;      // number of slots; 0: nothing repeats
  std::vector<Wait> waits;
  // Slots without a place whose requests are served dynamically: because of sizes that vary, or for another reason.
  std::vector<std::uint32_t> varying;
  std::vector<std::uint32_t> unplaced;
  std::vector<std::uint8_t> lanes;  // of each slot; empty: one order for all threads
};

// The plan of one process.
struct Plan {
  std::string writer;
  std::string source;  // name of the file with the requests
  std::uint64_t source_checksum = 0;
  std::vector<DevicePlan> devices;
};

}  // namespace stalloc::plan
