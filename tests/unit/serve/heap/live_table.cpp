// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/heap/live_table.h"

#include <map>
#include <random>

#include "catch.h"

using stalloc::serve::LiveEntry;
using stalloc::serve::LiveTable;

TEST_CASE("an empty table has no entries", "[serve][live]") {
  LiveTable table;
  LiveEntry entry;
  REQUIRE(table.find(0) == nullptr);
  REQUIRE(table.find(512) == nullptr);
  REQUIRE(table.find_holding(512) == nullptr);
  REQUIRE_FALSE(table.erase(512, &entry));
}

TEST_CASE("interior addresses are found, and the end is outside", "[serve][live]") {
  LiveTable table;
  REQUIRE(table.reserve_one());
  table.insert({4096, 1000, 7, stalloc::serve::Origin::Plan, 0});
  REQUIRE(table.find(4097) == nullptr);
  REQUIRE(table.find_holding(4096)->place == 7);
  REQUIRE(table.find_holding(5095)->place == 7);
  REQUIRE(table.find_holding(5096) == nullptr);
  REQUIRE(table.find_holding(4095) == nullptr);
}

TEST_CASE("the live table agrees with std::map", "[serve][live]") {
  std::mt19937_64 random(7);
  LiveTable table;
  std::map<CUdeviceptr, std::uint64_t> model;
  for (int step = 0; step < 200'000; ++step) {
    const CUdeviceptr address = (random() % 20'000 + 1) * 512;
    const auto known = model.find(address);
    REQUIRE((table.find(address) != nullptr) == (known != model.end()));
    if (known == model.end()) {
      REQUIRE(table.reserve_one());
      table.insert({address, random() % 1000, static_cast<std::uint32_t>(step), stalloc::serve::Origin::Plan, 0});
      model[address] = static_cast<std::uint64_t>(step);
    } else {
      LiveEntry entry;
      REQUIRE(table.erase(address, &entry));
      REQUIRE(entry.address == address);
      REQUIRE(entry.place == known->second);
      model.erase(known);
    }
    REQUIRE(table.size() == model.size());
  }
  for (const auto& [address, slot] : model) REQUIRE(table.find(address)->place == slot);
}

TEST_CASE("addresses inside entries are found, whatever is inserted and erased", "[serve][live]") {
  std::mt19937_64 random(11);
  LiveTable table;
  std::map<CUdeviceptr, std::uint64_t> model;
  for (int step = 0; step < 100'000; ++step) {
    const CUdeviceptr address = (random() % 5'000 + 1) * 4096;
    LiveEntry entry;
    if (table.erase(address, &entry)) {
      model.erase(address);
    } else {
      REQUIRE(table.reserve_one());
      const std::uint64_t bytes = random() % 4096 + 1;
      table.insert({address, bytes, 0, stalloc::serve::Origin::Dynamic, 0});
      model[address] = bytes;
    }
    if (step < 50'000) continue;  // no look-ups at first
    const CUdeviceptr asked = random() % (5'002 * 4096);
    const auto after = model.upper_bound(asked);
    const bool inside = after != model.begin() && asked - std::prev(after)->first < std::prev(after)->second;
    const LiveEntry* found = table.find_holding(asked);
    REQUIRE((found != nullptr) == inside);
    if (inside) REQUIRE(found->address == std::prev(after)->first);
  }
  table.clear();
  REQUIRE(table.size() == 0);
  REQUIRE(table.find_holding(4097) == nullptr);
}

TEST_CASE("the index is kept only while it is used", "[serve][live]") {
  LiveTable table;
  LiveEntry entry;
  REQUIRE(table.reserve_one());
  table.insert({4096, 1000, 0, stalloc::serve::Origin::Dynamic, 0});
  REQUIRE(table.find_holding(4096) != nullptr);
  REQUIRE_FALSE(table.has_index());
  REQUIRE(table.find_holding(4097) != nullptr);
  REQUIRE(table.has_index());
  for (int change = 0; change < 100'000; ++change) {
    REQUIRE(table.reserve_one());
    table.insert({1 << 20, 1000, 0, stalloc::serve::Origin::Dynamic, 0});
    REQUIRE(table.erase(1 << 20, &entry));
  }
  REQUIRE_FALSE(table.has_index());
  REQUIRE(table.find_holding(4097)->address == 4096);
}

TEST_CASE("no two insertions get the same number", "[serve][live]") {
  LiveTable table;
  LiveEntry entry;
  std::uint64_t last = 0;
  for (int i = 0; i < 10; ++i) {
    REQUIRE(table.reserve_one());
    table.insert({4096, 1000, 0, stalloc::serve::Origin::Dynamic, 0});
    REQUIRE(table.find(4096)->number > last);
    REQUIRE_FALSE(table.find(4096)->sync_memops);
    table.set_sync_memops(4096, true);
    REQUIRE(table.find(4096)->sync_memops);
    last = table.find(4096)->number;
    REQUIRE(table.erase(4096, &entry));
  }
}
