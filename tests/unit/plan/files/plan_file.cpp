// SPDX-License-Identifier: Apache-2.0
// Plan files: what is written is read; what is damaged or cannot be served is refused.
#include "plan/files/plan_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>

#include "catch.h"
#include "child.h"
#include "folder.h"
#include "plan/files/byte_checksum.h"
#include "plan/files/file_io.h"
#include "plan_generated.h"
#include "samples.h"

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

Plan plan_with_every_field() {
  Plan plan = test::sample_plan();
  plan.devices.front().lanes = {0, 1, 1, 0};
  plan.devices.front().varying = {3};
  plan.devices.front().unplaced = {3};
  return plan;
}

// Where the root table's description says where a field lies.
std::size_t vtable_entry(const std::vector<std::uint8_t>& bytes, std::uint16_t field) {
  std::uint32_t table = 0;
  std::int32_t back = 0;
  std::memcpy(&table, bytes.data(), sizeof table);
  std::memcpy(&back, bytes.data() + table, sizeof back);
  return static_cast<std::size_t>(static_cast<std::int64_t>(table) - back) + field;
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

TEST_CASE("slots that are served dynamically have no place, and are listed in order") {
  CHECK(defect_after([](DevicePlan& d) { d.unplaced = {4}; }) ==
        "device 0: unplaced 0 names a slot that does not exist");
  CHECK(defect_after([](DevicePlan& d) { d.unplaced = {0}; }) == "device 0: unplaced 0 names a slot with a place");
  CHECK(defect_after([](DevicePlan& d) { d.varying = {0}; }) == "device 0: varying 0 names a slot with a place");
  CHECK(defect_after([](DevicePlan& d) { d.unplaced = {3, 3}; }) == "device 0: unplaced 1 is out of order");
  CHECK(defect_after([](DevicePlan& d) { d.unplaced = {3}; }).empty());
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

// A checksum over bytes knows no fields: what a later version of the schema adds is covered when it is written.
TEST_CASE("a plan with any byte changed is refused, whichever field it is of") {
  const auto bytes = plan::encode_plan(plan_with_every_field());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const std::uint8_t flip : {0x01, 0x80, 0xff}) {
      auto changed = bytes;
      changed[at] = static_cast<std::uint8_t>(changed[at] ^ flip);
      const auto decoded = plan::decode_plan(changed);
      if (decoded.ok()) FAIL_CHECK("byte " << at << " was changed and nobody noticed");
      CHECK(decoded.error.find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("a plan without its byte checksum is refused") {
  auto bytes = plan::encode_plan(plan_with_every_field());
  const auto in_vtable = vtable_entry(bytes, planfb::Plan::VT_BYTE_CHECKSUM);
  bytes[in_vtable] = bytes[in_vtable + 1] = 0;  // the field counts as not stored
  CHECK(plan::decode_plan(bytes).error == "corrupt plan: the checksum does not match");
}

TEST_CASE("a plan of an older minor version is read") {
  const auto plan = plan::read_plan(TEST_DATA "/plan-1.2.fb");
  REQUIRE(plan.error.empty());
  CHECK(plan.value.devices.front().lanes == std::vector<std::uint8_t>{0, 1, 1, 0});
  CHECK(plan.value.devices.front().varying == std::vector<std::uint32_t>{3});
  // The fields that such a reader checks are right in a new file, too.
  const auto again = plan::encode_plan(plan.value);
  const auto old = plan::read_file(TEST_DATA "/plan-1.2.fb");
  CHECK(planfb::GetPlan(again.data())->checksum() == planfb::GetPlan(old.value.data())->checksum());
}

TEST_CASE("a plan of a newer minor version is read") {
  auto bytes = plan::encode_plan(test::sample_plan());
  const auto minor = find_root_field(bytes, {0, planfb::Plan::VT_VERSION_MINOR}, 2);
  REQUIRE(minor);
  bytes[*minor] = 99;
  CHECK_FALSE(plan::decode_plan(bytes).ok());
  store_byte_checksum(bytes, {0, planfb::Plan::VT_BYTE_CHECKSUM});
  CHECK(plan::decode_plan(bytes).ok());
}

TEST_CASE("plans of another major version and foreign files are named as such") {
  CHECK(plan::decode_plan(std::vector<std::uint8_t>{}).error == "not a plan: the file is empty");
  CHECK(plan::decode_plan(std::vector<std::uint8_t>(100, 'x')).error == "not a plan");
  const std::string expected =
      "plan of format version 9." + std::to_string(plan::kPlanVersionMinor) + "; this stalloc reads version 1";
  auto bytes = plan::encode_plan(test::sample_plan());
  const auto major = find_root_field(bytes, {0, planfb::Plan::VT_VERSION_MAJOR}, 2);
  REQUIRE(major);
  bytes[*major] = 9;
  CHECK(plan::decode_plan(bytes).error == expected);
  // Another version's fields may have other types, so that the file does not look like a plan of this version.
  const auto writer = find_root_field(bytes, {0, planfb::Plan::VT_WRITER}, 4);
  REQUIRE(writer);
  for (std::size_t i = 0; i < 4; ++i) bytes[*writer + i] = 0xff;
  CHECK(plan::decode_plan(bytes).error == expected);
}

TEST_CASE("read_plan takes nothing but regular files, and waits for none") {
  const test::Folder folder;
  const std::string fifo = folder / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(plan::read_plan(fifo).error == "cannot read " + fifo + ": it is no regular file");
  CHECK(plan::read_plan(folder / ".").error == "cannot read " + (folder / ".") + ": it is no regular file");
  CHECK(plan::read_plan("/dev/null").error == "cannot read /dev/null: it is no regular file");
  const std::string huge = folder / "huge";
  REQUIRE(plan::replace_file(huge, {}).empty());
  REQUIRE(truncate(huge.c_str(), off_t{1} << 40) == 0);
  CHECK(plan::read_plan(huge).error == "cannot read " + huge + ": it is too large for such a file");
  REQUIRE(truncate(huge.c_str(), off_t{1} << 30) == 0);  // not read to its end
  CHECK(plan::read_plan(huge).error == huge + ": not a plan");
  CHECK(plan::read_plan(folder / "none").error == "cannot open " + (folder / "none") + ": No such file or directory");
}

TEST_CASE("a written plan replaces the file as a whole, behind a link too, and nothing else") {
  const test::Folder folder;
  const Plan plan = test::sample_plan();
  const std::string file = folder / "plan.fb";
  const std::string link = folder / "link.fb";
  REQUIRE(plan::write_plan(plan, file).empty());
  REQUIRE(symlink("plan.fb", link.c_str()) == 0);
  // The name that is tried first is taken.
  const std::string theirs = file + ".tmp" + std::to_string(getpid());
  REQUIRE(symlink("plan.fb", theirs.c_str()) == 0);
  Plan other = plan;
  other.source = "other.fb";
  CHECK(plan::write_plan(other, link).empty());
  CHECK(plan::read_plan(file).value.source == "other.fb");
  CHECK(std::filesystem::is_symlink(link));
  CHECK(std::filesystem::is_symlink(theirs));
  // Too large for the process: the old file stays, and nothing is left beside it.
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{100, limit.rlim_max};
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = plan::write_plan(plan, file);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  CHECK(error == "cannot write " + file + ": File too large");
  CHECK(plan::read_plan(file).value.source == "other.fb");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 3);
}

TEST_CASE("a file that is written when the process is ended is not left behind") {
  const test::Folder folder;
  const std::string file = folder / "plan.fb";
  const auto leaves = [&folder] { return std::distance(std::filesystem::directory_iterator(folder.path()), {}); };
  for (const bool is_there : {false, true}) {
    if (is_there) REQUIRE(plan::replace_file(file, {}).empty());
    // The system sends the signal when more is written than the process may write.
    CHECK(test::holds_in_child([&file] {
      const rlimit small{100, RLIM_INFINITY};
      std::signal(SIGXFSZ, [](int) {
        plan::remove_unfinished_files();
        _exit(0);
      });
      if (setrlimit(RLIMIT_FSIZE, &small) == 0) (void)plan::write_plan(test::sample_plan(), file);
      return false;
    }));
    CHECK(leaves() == (is_there ? 1 : 0));
  }
}

TEST_CASE("a plan that replaces a file has its permissions") {
  namespace fs = std::filesystem;
  const test::Folder folder;
  const std::string file = folder / "plan.fb";
  REQUIRE(plan::write_plan(test::sample_plan(), file).empty());
  for (const unsigned mode : {0640U, 0600U, 0444U, 0777U}) {
    fs::permissions(file, fs::perms{mode});
    REQUIRE(plan::write_plan(test::sample_plan(), file).empty());
    CHECK(fs::status(file).permissions() == fs::perms{mode});
  }
}

TEST_CASE("a plan that root writes for another user stays that user's") {
  const test::Folder folder;
  const std::string file = folder / "plan.fb";
  REQUIRE(plan::write_plan(test::sample_plan(), file).empty());
  constexpr unsigned kOther = 12345;
  if (chown(file.c_str(), kOther, kOther) != 0) return;  // not root
  REQUIRE(plan::write_plan(test::sample_plan(), file).empty());
  struct stat made {};
  REQUIRE(stat(file.c_str(), &made) == 0);
  CHECK(made.st_uid == kOther);
  CHECK(made.st_gid == kOther);
}

TEST_CASE("a plan may have a name as long as the file system allows") {
  const test::Folder folder;
  const std::string file = folder / std::string(NAME_MAX, 'p').c_str();
  CHECK(plan::write_plan(test::sample_plan(), file).empty());
  CHECK(plan::read_plan(file).ok());
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a plan that would be too large to read is not written") {
  const test::Folder folder;
  const std::string file = folder / "plan.fb";
  Plan many = plan_with_every_field();
  DevicePlan& device = many.devices.front();
  device.views.resize(1000, device.views.back());
  device.waits.resize(1000, device.waits.back());
  for (std::uint32_t i = 1; i < 100; ++i) {
    many.devices.push_back(many.devices.front());
    many.devices.back().device = i;
  }
  for (const Plan& plan : {Plan{}, test::sample_plan(), plan_with_every_field(), many}) {
    const std::uint64_t bytes = plan::encode_plan(plan).size();
    CHECK(plan::write_plan(plan, file, bytes - 1).starts_with("cannot write " + file + ": the plan would have up to "));
    CHECK_FALSE(std::filesystem::exists(file));
    CHECK(plan::write_plan(plan, file, 2 * bytes + 1024).empty());
    CHECK(plan::read_plan(file).ok());
    std::filesystem::remove(file);
  }
}

TEST_CASE("a plan with more views than a reader accepts is not written") {
  const test::Folder folder;
  Plan plan = test::sample_plan();
  plan.devices.front().views.resize(plan::kMostPlanTables, plan.devices.front().views.back());
  CHECK(plan::write_plan(plan, folder / "plan.fb") ==
        "cannot write " + (folder / "plan.fb") + ": the plan has more views than one that can be read (1000000)");
  plan.devices.front().views.resize(plan::kMostPlanTables - 2);
  CHECK(plan::write_plan(plan, folder / "plan.fb").empty());
  CHECK(plan::read_plan(folder / "plan.fb").ok());
}

TEST_CASE("find_defect accepts what can be served") { CHECK(plan::find_defect(test::sample_plan()).empty()); }

TEST_CASE("find_defect names what cannot be served") {
  CHECK(defect_after([](DevicePlan& d) { d.granularity = 0; }) == "device 0: the granularity is not usable");
  CHECK(defect_after([](DevicePlan& d) { d.granularity = 1000; }) == "device 0: the granularity is not usable");
  CHECK(defect_after([](DevicePlan& d) { d.granularity = std::uint64_t{1} << 41; }) ==
        "device 0: the granularity is not usable");
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
  CHECK(defect_after([](DevicePlan& d) {
          d.handles = {std::uint64_t{1} << 63};
          d.physical_bytes = std::uint64_t{1} << 63;
          d.views.assign(2, {std::uint64_t{1} << 63, {0}});
        }) == "device 0: view 1 makes the sum of addresses overflow");
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

TEST_CASE("find_defect looks at each of very many devices once") {
  constexpr std::uint32_t kDevices = 400'000;
  Plan plan;
  for (std::uint32_t i = 0; i < kDevices; ++i) {
    DevicePlan& device = plan.devices.emplace_back();
    device.device = i;
    device.granularity = kPage;
    device.views.resize(1);
  }
  // A child may take a minute. To compare each device with each earlier one takes many times as long.
  CHECK(test::holds_in_child([&plan] { return plan::find_defect(plan).empty(); }));
}

TEST_CASE("find_defect refuses slots that are too many pieces for a list of them") {
  constexpr std::uint32_t kHandles = 20'000;
  Plan plan;
  DevicePlan& device = plan.devices.emplace_back();
  device.granularity = kPage;
  device.physical_bytes = kHandles * kPage;
  device.handles.assign(kHandles, kPage);
  device.views.assign(2, {kHandles * kPage, {}});
  for (std::uint32_t i = 0; i < kHandles; ++i) device.views[0].handles.push_back(i);
  device.views[1].handles.assign(device.views[0].handles.rbegin(), device.views[0].handles.rend());
  device.slots.assign(4'000, {.size = kHandles * kPage});
  CHECK(plan::find_defect(plan).empty());  // in the home view each is one range
  for (plan::Slot& slot : device.slots) slot.view = 1;
  CHECK(plan::find_defect(plan) == "device 0: slot " + std::to_string(plan::kMostPlanRanges / kHandles) +
                                       " makes the slots consist of too many ranges");
  // Slots that begin and end inside of handles, over three of them each.
  for (plan::Slot& slot : device.slots) slot.offset = kPage / 2, slot.size = 2 * kPage;
  CHECK(plan::find_defect(plan).empty());
}

TEST_CASE("a passed-through slot needs no place") {
  CHECK(defect_after([](DevicePlan& d) { d.slots[3].view = 77; }).empty());
}

TEST_CASE("a defect in a well-formed file is found on reading") {
  Plan plan = test::sample_plan();
  plan.devices.front().slots[1].offset = 64 * kPage;
  CHECK(plan::decode_plan(plan::encode_plan(plan)).error == "unusable plan: device 0: slot 1 ends outside its view");
}
