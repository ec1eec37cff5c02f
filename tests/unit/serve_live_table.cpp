#include "interpose/serve/live_table.h"

#include <map>
#include <random>

#include "catch.h"

using stalloc::serve::LiveEntry;
using stalloc::serve::LiveTable;

TEST_CASE("an empty table knows nothing", "[serve][live]") {
  LiveTable table;
  LiveEntry entry;
  REQUIRE(table.find(0) == nullptr);
  REQUIRE(table.find(512) == nullptr);
  REQUIRE(table.find_holding(512) == nullptr);
  REQUIRE_FALSE(table.erase(512, &entry));
}

TEST_CASE("interior addresses are found, the end is outside", "[serve][live]") {
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
