// Plan files: what is written is read; what is damaged or cannot be served is refused.
#include "plan/files/plan_file.h"

#include <functional>

#include "catch.h"
#include "plan_samples.h"

using namespace stalloc;
using plan::DevicePlan;
using plan::Plan;

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

std::string defect_after(const std::function<void(DevicePlan&)>& change) {
  Plan plan = test::sample_plan();
  change(plan.devices.front());
  return plan::find_defect(plan);
}

}  // namespace

TEST_CASE("a plan survives encoding and decoding") {
  const Plan plan = test::sample_plan();
  const auto bytes = plan::encode_plan(plan);
  const auto decoded = plan::decode_plan(bytes);
  REQUIRE(decoded.error.empty());
  CHECK(decoded.value.writer == plan.writer);
  CHECK(decoded.value.source_checksum == plan.source_checksum);
  CHECK(decoded.value.devices.front().slots.size() == 4);
  CHECK(decoded.value.devices.front().views[1].handles == plan.devices.front().views[1].handles);
  CHECK(plan::encode_plan(decoded.value) == bytes);
}

TEST_CASE("lanes survive, and every slot must have one") {
  Plan plan = test::sample_plan();
  plan.devices.front().lanes = {0, 1, 0, 255};
  const auto decoded = plan::decode_plan(plan::encode_plan(plan));
  REQUIRE(decoded.error.empty());
  CHECK(decoded.value.devices.front().lanes == plan.devices.front().lanes);
  CHECK(defect_after([](DevicePlan& d) { d.lanes = {0, 1, 0}; }) == "device 0: not every slot has a lane");
}

TEST_CASE("an empty plan survives too") {
  const auto decoded = plan::decode_plan(plan::encode_plan(Plan{}));
  CHECK(decoded.error.empty());
  CHECK(decoded.value.devices.empty());
}

TEST_CASE("a plan cut short anywhere is refused") {
  const auto bytes = plan::encode_plan(test::sample_plan());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const auto decoded = plan::decode_plan(cut);
    // The last bytes of a buffer may be padding that nothing refers to.
    if (decoded.ok()) CHECK(plan::encode_plan(decoded.value) == bytes);
  }
  CHECK_FALSE(plan::decode_plan(std::span(bytes).first(bytes.size() / 2)).ok());
}

TEST_CASE("a plan with any byte changed is refused or means the same") {
  const auto bytes = plan::encode_plan(test::sample_plan());
  std::size_t refused = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const std::uint8_t flip : {0x01, 0x80, 0xff}) {
      auto changed = bytes;
      changed[at] = static_cast<std::uint8_t>(changed[at] ^ flip);
      const auto decoded = plan::decode_plan(changed);
      if (!decoded.ok()) {
        ++refused;
        CHECK(decoded.error.find('\n') == std::string::npos);
      } else if (plan::encode_plan(decoded.value) != bytes) {
        FAIL_CHECK("byte " << at << " changed the plan and was not noticed");
      }
    }
  }
  CHECK(refused > bytes.size());
}

TEST_CASE("plans of another major version and foreign files are named as such") {
  auto bytes = plan::encode_plan(test::sample_plan());
  CHECK(plan::decode_plan(std::vector<std::uint8_t>{}).error == "not a plan: the file is empty");
  CHECK(plan::decode_plan(std::vector<std::uint8_t>(100, 'x')).error == "not a plan");
  bool found = false;
  for (std::size_t at = 8; at < bytes.size() && !found; ++at) {  // the version is one of the root table's fields
    auto changed = bytes;
    changed[at] = 9;
    found = plan::decode_plan(changed).error.find("plan of format version 9.2") == 0;
  }
  CHECK(found);
}

TEST_CASE("find_defect accepts what can be served") { CHECK(plan::find_defect(test::sample_plan()).empty()); }

TEST_CASE("find_defect names what cannot be served") {
  CHECK(defect_after([](DevicePlan& d) { d.granularity = 0; }) == "device 0: the granularity is not usable");
  CHECK(defect_after([](DevicePlan& d) { d.granularity = 1000; }) == "device 0: the granularity is not usable");
  CHECK(defect_after([](DevicePlan& d) { d.handles[1] += 512; }) ==
        "device 0: handle 1 is not a multiple of the granularity");
  CHECK(defect_after([](DevicePlan& d) { d.handles[0] = 0; }) ==
        "device 0: handle 0 is not a multiple of the granularity");
  CHECK(defect_after([](DevicePlan& d) { d.handles[0] = d.handles[1] = ~std::uint64_t{0} / kPage * kPage; }) ==
        "device 0: handle 1 makes the sum of bytes overflow");
  CHECK(defect_after([](DevicePlan& d) { d.physical_bytes += kPage; }) ==
        "device 0: physical_bytes is not the sum of the handles");
  CHECK(defect_after([](DevicePlan& d) { d.views.clear(); }) == "device 0: there is no home view");
  CHECK(defect_after([](DevicePlan& d) {
          d.views[0].handles = {0, 2, 1};
        }) == "device 0: the home view does not map every handle once, in order");
  CHECK(defect_after([](DevicePlan& d) {
          d.views[1].handles = {0, 9};
        }) == "device 0: view 1 names a handle that does not exist");
  CHECK(defect_after([](DevicePlan& d) { d.views[1].handles = {0, 0}; }) == "device 0: view 1 maps a handle twice");
  CHECK(defect_after([](DevicePlan& d) { d.views[1].bytes = kPage; }) ==
        "device 0: view 1 is not as large as its handles");
  CHECK(defect_after([](DevicePlan& d) { d.slots[1].view = 2; }) ==
        "device 0: slot 1 names a view that does not exist");
  CHECK(defect_after([](DevicePlan& d) { d.slots[1].offset += 256; }) == "device 0: slot 1 is not aligned");
  CHECK(defect_after([](DevicePlan& d) { d.slots[1].offset = 4 * kPage; }) == "device 0: slot 1 ends outside its view");
  CHECK(defect_after([](DevicePlan& d) { d.slots[1].size = ~std::uint64_t{0}; }) ==
        "device 0: slot 1 ends outside its view");
  CHECK(defect_after([](DevicePlan& d) { d.slots[1].kind = static_cast<plan::SlotKind>(4); }) ==
        "device 0: slot 1 is of an unknown kind");
  CHECK(defect_after([](DevicePlan& d) { d.slots[1].upper = 0; }) == "device 0: slot 1 ends before it begins");
  CHECK(defect_after([](DevicePlan& d) { d.prologue = 5; }) == "device 0: the body ends behind the last slot");
  CHECK(defect_after([](DevicePlan& d) { d.body = ~std::uint32_t{0}; }) ==
        "device 0: the body ends behind the last slot");
  CHECK(defect_after([](DevicePlan& d) { d.waits[0].freed = 4; }) ==
        "device 0: wait 0 names a slot that does not exist");
  CHECK(defect_after([](DevicePlan& d) { d.slots[1].event_on_free = false; }) ==
        "device 0: wait 0 is for a free that records no event");
  CHECK(defect_after([](DevicePlan& d) { d.waits.push_back({1, 1}); }) == "device 0: wait 1 is out of order");
}

TEST_CASE("find_defect refuses a device planned twice") {
  Plan plan = test::sample_plan();
  plan.devices.push_back(plan.devices.front());
  CHECK(plan::find_defect(plan) == "device 0 is planned twice");
}

TEST_CASE("a passed-through slot needs no place") {
  CHECK(defect_after([](DevicePlan& d) { d.slots[3].view = 77; }).empty());
}

TEST_CASE("a defect in a well-formed file is found on reading") {
  Plan plan = test::sample_plan();
  plan.devices.front().slots[1].offset = 64 * kPage;
  CHECK(plan::decode_plan(plan::encode_plan(plan)).error == "unusable plan: device 0: slot 1 ends outside its view");
}
