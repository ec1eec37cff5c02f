// SPDX-License-Identifier: Apache-2.0
// The dynamic sub-allocator's policy, on the fake driver.
#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "host_memory.h"
#include "interpose/serve/heap/heap.h"
#include "plan/simulate/null_backend.h"
#include "plans.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::CrossStream;
using serve::Heap;
using serve::HeapOptions;
using stalloc::StreamKey;

namespace {

std::string last_log;  // the log function has no context
void keep_log(serve::LogKind /*kind*/, const char* text) { last_log = text; }

struct Fixture : HeapFixture {
  explicit Fixture(const HeapOptions& options = small_options(), std::uint64_t device_bytes = std::uint64_t{1} << 30,
                   const plan::DevicePlan* plan = nullptr)
      : HeapFixture(options, plan, device_bytes, &keep_log) {
    last_log.clear();
  }

  CUdeviceptr allocate_pages(std::uint64_t pages) { return allocate(pages * kPage, stream); }
  CUdeviceptr allocate_pages_on(StreamKey key, std::uint64_t pages) { return allocate(pages * kPage, key); }
  using HeapFixture::free;
  void free(CUdeviceptr address) { free(address, stream); }
  // Allocates blocks of two pages and frees every other one, from the first on. Returns all of them.
  std::vector<CUdeviceptr> scatter(std::size_t count) {
    std::vector<CUdeviceptr> blocks;
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(allocate_pages(2));
    for (std::size_t i = 0; i < count; i += 2) free(blocks[i]);
    return blocks;
  }
  serve::Statistics statistics() const { return heap->statistics(); }
  std::uint64_t physical() const { return heap->statistics().physical; }
};

}  // namespace

TEST_CASE("memory grows by the requested bytes, rounded to a page", "[serve][dynamic]") {
  Fixture fixture;
  REQUIRE(fixture.physical() == 0);
  REQUIRE(fixture.heap->allocate(3 * kPage + 1, fixture.stream, nullptr));
  REQUIRE(fixture.physical() == 4 * kPage);
  REQUIRE(fixture.statistics().grows == 1);
  REQUIRE(fixture.statistics().dynamic_requests == 1);
  REQUIRE(fixture.statistics().dynamic_live == 3 * kPage + 1);
}

TEST_CASE("freed bytes are used again before memory grows", "[serve][dynamic]") {
  Fixture fixture;
  const CUdeviceptr first = fixture.allocate_pages(4);
  fixture.free(first);
  REQUIRE(fixture.allocate_pages(4) == first);
  REQUIRE(fixture.physical() == 4 * kPage);
  REQUIRE(fixture.statistics().grows == 1);
}

TEST_CASE("small and other requests share no handle until the device has no more memory", "[serve][dynamic]") {
  constexpr std::uint64_t kBytes = kPage / 4 * 3;
  const std::uint64_t free_pages = GENERATE(0, 1);
  Fixture fixture(small_options(), (6 + free_pages) * kPage);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(*fixture.heap->allocate(kBytes, fixture.stream, nullptr));
  REQUIRE(fixture.physical() == 6 * kPage);
  for (const std::size_t i : {1, 3, 5}) fixture.free(blocks[i]);  // no page is entirely free
  fixture.driver.finish_all_work();
  const auto small = fixture.heap->allocate(kPage / 8, fixture.stream, nullptr);
  REQUIRE(small);
  REQUIRE(fixture.heap->owns(*small));
  REQUIRE(fixture.physical() == (6 + free_pages) * kPage);
  REQUIRE(fixture.heap->held_for_small() == free_pages * kPage);
}

TEST_CASE("scattered handles are stitched before memory grows, and the view is used again", "[serve][dynamic]") {
  Fixture fixture;
  const std::vector<CUdeviceptr> blocks = fixture.scatter(6);
  const CUdeviceptr stitched = fixture.allocate_pages(6);
  REQUIRE(fixture.physical() == 12 * kPage);
  REQUIRE(fixture.statistics().stitches == 1);
  REQUIRE(fixture.driver.physical(stitched) == fixture.driver.physical(blocks[0]));
  fixture.free(stitched);
  REQUIRE(fixture.allocate_pages(6) == stitched);
  REQUIRE(fixture.statistics().stitches == 1);
  REQUIRE(fixture.statistics().view_hits == 1);
}

TEST_CASE("a stitched view grows only by the missing bytes", "[serve][dynamic]") {
  Fixture fixture;
  const CUdeviceptr first = fixture.allocate_pages(2);
  fixture.allocate_pages(2);
  fixture.free(first);
  fixture.allocate_pages(5);
  REQUIRE(fixture.physical() == 7 * kPage);
  REQUIRE(fixture.statistics().stitches == 1);
}

TEST_CASE("a view that grows ends in a partly used handle if this saves a new one", "[serve][dynamic]") {
  Fixture fixture;
  const std::uint64_t pages = GENERATE(4, 5);  // and a half
  CAPTURE(pages);
  const CUdeviceptr whole = fixture.allocate_pages(2);
  const CUdeviceptr part = fixture.allocate(3 * kPage / 4, fixture.stream);
  fixture.allocate(5 * kPage / 4, fixture.stream);
  REQUIRE(fixture.physical() == 4 * kPage);
  fixture.free(whole);
  fixture.free(part);
  const std::uint64_t bytes = pages * kPage + kPage / 2;
  const CUdeviceptr view = fixture.allocate(bytes, fixture.stream);
  REQUIRE(fixture.statistics().stitches == 1);
  REQUIRE(fixture.physical() == (pages + 2) * kPage);  // with `pages` - 2 new ones for what two and a half lack
  const std::uint64_t at_end = bytes - kPage / 4;
  REQUIRE(fixture.driver.physical(view + at_end) == fixture.driver.physical(part + kPage / 4));
}

namespace {

// A view of six pages without live blocks, whose fifth page is in use in the home view. Two pages are free elsewhere.
struct UsedView {
  explicit UsedView(Fixture* fixture, bool with_work = false) {
    for (int i = 0; i < 8; ++i) blocks.push_back(fixture->allocate_pages(2));
    for (std::size_t i = 0; i < 6; i += 2) fixture->free(blocks[i]);
    view = fixture->allocate_pages(6);
    if (with_work) fixture->driver.work(fixture->stream);
    fixture->free(view);
    std::vector<CUdeviceptr> pages;
    for (int i = 0; i < 5; ++i) pages.push_back(fixture->allocate_pages(1));
    for (int i = 0; i < 4; ++i) fixture->free(pages[i]);
    used = pages[4];
    REQUIRE(used == blocks[4]);
    REQUIRE(fixture->driver.physical(view + 4 * kPage) == fixture->driver.physical(used));
    fixture->free(blocks[6]);
  }
  std::vector<CUdeviceptr> blocks;
  CUdeviceptr view = 0;
  CUdeviceptr used = 0;
};

// The physical memory of each of so many pages.
std::vector<std::uint64_t> physical_of(Fixture* fixture, CUdeviceptr address, std::uint64_t pages) {
  std::vector<std::uint64_t> behind;
  for (std::uint64_t i = 0; i < pages; ++i) behind.push_back(fixture->driver.physical(address + i * kPage));
  return behind;
}

}  // namespace

TEST_CASE("in an idle view, only the handles that others use are exchanged", "[serve][dynamic]") {
  Fixture fixture;
  const UsedView made(&fixture);
  std::vector<std::uint64_t> shown = physical_of(&fixture, made.view, 6);
  const std::uint64_t calls = fixture.statistics().mapping_calls_after_start;
  REQUIRE(fixture.allocate_pages(6) == made.view);
  // One handle is unmapped, and one is mapped, with access.
  REQUIRE(fixture.statistics().mapping_calls_after_start == calls + 3);
  shown[4] = fixture.driver.physical(made.blocks[6] + kPage);
  REQUIRE(physical_of(&fixture, made.view, 6) == shown);
  REQUIRE(fixture.physical() == 16 * kPage);
  REQUIRE(fixture.statistics().views == 1);
  REQUIRE(fixture.statistics().stitches == 2);
  fixture.free(made.view);
  REQUIRE(fixture.allocate_pages(6) == made.view);  // it can be used again like any view
}

TEST_CASE("a view that the device may still use is not repaired", "[serve][dynamic]") {
  Fixture fixture;
  const UsedView made(&fixture, true);
  const CUdeviceptr address = fixture.allocate_pages(6);
  REQUIRE((address + 6 * kPage <= made.view || address >= made.view + 6 * kPage));
  REQUIRE(fixture.driver.physical(made.view + 4 * kPage) == fixture.driver.physical(made.used));
}

TEST_CASE("a view is not repaired if that takes more than half of the calls of a new view", "[serve][dynamic]") {
  HeapOptions options = small_options();
  options.policy.handles_per_repaired = GENERATE(3, 4);  // of six handles, two would be exchanged
  const bool repairs = options.policy.handles_per_repaired == 3;
  Fixture fixture(options);
  const UsedView made(&fixture);
  REQUIRE((fixture.allocate_pages(6) == made.view) == repairs);
}

TEST_CASE("a view that could not be repaired is removed, and the request is served elsewhere", "[serve][dynamic]") {
  Fixture fixture;
  const UsedView made(&fixture);
  // The first calls query whether work still uses the view. Then one handle is unmapped, and another is mapped, with
  // access.
  const auto call = static_cast<std::uint64_t>(GENERATE(range(2, 10)));
  CAPTURE(call);
  const std::uint64_t calls = fixture.statistics().mapping_calls_after_start;
  fixture.driver.fail_at(call, CUDA_ERROR_UNKNOWN);
  const CUdeviceptr address = fixture.allocate_pages(6);
  fixture.driver.fail_at(0);
  const bool is_repaired = fixture.statistics().mapping_calls_after_start == calls + 3;
  REQUIRE(is_repaired == (call > 6));
  REQUIRE(fixture.statistics().views == (call < 4 ? 2 : 1));  // the old view stays if it may not be idle
  std::vector<std::uint64_t> shown = physical_of(&fixture, address, 6);
  shown.push_back(fixture.driver.physical(made.used));
  for (std::size_t i = 1; i < made.blocks.size(); i += 2) shown.push_back(fixture.driver.physical(made.blocks[i]));
  std::sort(shown.begin(), shown.end());
  REQUIRE(std::adjacent_find(shown.begin(), shown.end()) == shown.end());
  fixture.free(address);
  fixture.free(made.used);
  for (std::size_t i = 1; i < made.blocks.size(); i += 2) fixture.free(made.blocks[i]);
  synchronize(*fixture.heap, fixture.driver);
  fixture.heap->trim(0);
  REQUIRE(fixture.physical() == 0);
}

TEST_CASE("a request whose slot has no place is served dynamically if the plan says so, else by CUDA",
          "[serve][dynamic]") {
  plan::DevicePlan plan = test::plan_of_sizes({4 * kPage, kPage, 2 * kPage});
  plan.body = 3;
  plan.slots[1].kind = plan::SlotKind::PassThrough;
  const bool is_listed = GENERATE(false, true);
  CAPTURE(is_listed);
  if (is_listed) plan.unplaced = {1};
  Fixture fixture(small_options(), std::uint64_t{1} << 30, &plan);
  for (int repetition = 0; repetition < 3; ++repetition) {
    const CUdeviceptr first = fixture.allocate_pages(4);
    REQUIRE(fixture.heap->allocate(kPage, fixture.stream, nullptr).has_value() == is_listed);  // and never freed
    const CUdeviceptr last = fixture.allocate_pages(2);
    fixture.free(first);
    fixture.free(last);
  }
  REQUIRE(fixture.statistics().planned_requests == 6);
  REQUIRE(fixture.statistics().dynamic_requests == (is_listed ? 3 : 0));
}

TEST_CASE("the free memory of the device is queried again when a part of it was created", "[serve][dynamic]") {
  constexpr std::uint64_t kPages = 1600;  // of the device
  HeapOptions options = small_options();
  options.policy.held_per_handle = 1;  // so that the size of each handle depends on what is free
  options.policy.room_per_handle = kPages;
  Fixture fixture(options, kPages * kPage);
  for (std::uint64_t pages = 1; pages <= kPages / 2; ++pages) {
    fixture.allocate_pages(1);
    CAPTURE(pages);
    REQUIRE(fixture.physical() == pages * kPage);
    REQUIRE(fixture.driver.memory_queries() >= 1 + pages / (kPages / 16));
    REQUIRE(fixture.driver.memory_queries() <= 4 + pages / (kPages / 32));
  }
}

TEST_CASE("where the driver refused a mapping and to undo it, memory grows later all the same", "[serve][dynamic]") {
  Fixture fixture;
  // Three handles are created and mapped, then access is enabled. A refused call is undone by the next ones.
  const auto failing = static_cast<std::uint64_t>(GENERATE(range(1, 9)));
  CAPTURE(failing);
  fixture.driver.fail_at(failing, CUDA_ERROR_UNKNOWN, 2);
  const auto refused = fixture.heap->allocate(3 * kPage, fixture.stream, nullptr);
  fixture.driver.fail_at(0);
  if (refused) fixture.free(*refused);
  const auto block = fixture.heap->allocate(4 * kPage, fixture.stream, nullptr);
  REQUIRE(block);
  REQUIRE(fixture.heap->backing(*block));
  fixture.free(*block);
  fixture.heap.reset();
  REQUIRE(fixture.driver.is_clean());
}

TEST_CASE("while the driver refuses to undo a mapping, nothing is mapped over it and no more memory is lost",
          "[serve][dynamic]") {
  Fixture fixture;
  const CUdeviceptr first = fixture.allocate_pages(1);
  const auto failing = static_cast<std::uint64_t>(GENERATE(range(1, 16)));
  CAPTURE(failing);
  fixture.driver.refuses_to_unmap = true;
  fixture.driver.fail_at(failing, CUDA_ERROR_UNKNOWN);
  std::vector<CUdeviceptr> blocks{first};
  const auto request = [&](std::uint64_t bytes) {
    const auto block = fixture.heap->allocate(bytes, fixture.stream, nullptr);
    if (block) blocks.push_back(*block);
  };
  request(3 * kPage);
  fixture.driver.fail_at(0);
  const std::uint64_t lost = fixture.driver.memory_used() - fixture.physical();
  REQUIRE(lost <= 3 * kPage);
  for (const std::uint64_t bytes : {2 * kPage, 5 * kPage, kPage / 4, 3 * kPage}) {
    fixture.driver.fail_at(failing, CUDA_ERROR_UNKNOWN);
    request(bytes);
    fixture.driver.fail_at(0);
    if (lost > 0) REQUIRE(fixture.driver.memory_used() == fixture.physical() + lost);
  }
  fixture.driver.refuses_to_unmap = false;
  blocks.push_back(fixture.allocate_pages(7));
  REQUIRE(fixture.driver.memory_used() == fixture.physical());
  for (const CUdeviceptr block : blocks) fixture.free(block);
  fixture.heap.reset();
  REQUIRE(fixture.driver.is_clean());
}

TEST_CASE("where a view could not be mapped, nor what was mapped of it be undone, it is made elsewhere",
          "[serve][dynamic]") {
  std::vector<CUdeviceptr> views;
  for (std::uint64_t failing = 2; failing < 16; ++failing) {
    CAPTURE(failing);
    Fixture fixture;
    const std::vector<CUdeviceptr> blocks = fixture.scatter(6);
    fixture.driver.refuses_to_unmap = true;
    fixture.driver.fail_at(failing, CUDA_ERROR_UNKNOWN);
    views.push_back(fixture.allocate_pages(6));
    fixture.driver.fail_at(0);
    REQUIRE(fixture.statistics().views == 1);
    REQUIRE(fixture.physical() == 12 * kPage);
    REQUIRE_NOTHROW(fixture.driver.physical(views.back() + 5 * kPage));
    fixture.driver.refuses_to_unmap = false;
    fixture.free(views.back());
    for (std::size_t i = 1; i < blocks.size(); i += 2) fixture.free(blocks[i]);
    synchronize(*fixture.heap, fixture.driver);
    fixture.heap->trim(0);
    REQUIRE(fixture.driver.holds_no_memory());
  }
  const auto moved = std::count_if(views.begin(), views.end(), [&](CUdeviceptr view) { return view > views.back(); });
  REQUIRE(moved == 6);  // a handle after the first one, or access to the view, was refused
}

TEST_CASE("a heap whose memory cannot be unmapped at its end keeps its addresses", "[serve][dynamic]") {
  Fixture fixture;
  fixture.free(fixture.allocate_pages(3));
  fixture.driver.refuses_to_unmap = true;
  fixture.heap.reset();
  REQUIRE_FALSE(fixture.driver.holds_nothing());
}

TEST_CASE("a heap gives everything back at its end, although the host has no memory then", "[serve][dynamic]") {
  Fixture fixture;
  for (int view = 0; view < 2; ++view) {
    fixture.scatter(6);
    fixture.allocate_pages(6);
  }
  REQUIRE(fixture.statistics().views == 2);
  allocations_left = 1;
  const bool is_closed = fixture.heap->close();
  allocations_left = 0;
  REQUIRE(is_closed);
  REQUIRE(fixture.statistics().views == 0);
  REQUIRE(fixture.driver.holds_no_memory());
}

TEST_CASE("when addresses for views run out, requests are still served", "[serve][dynamic]") {
  constexpr std::uint64_t kBlocks = 20;
  Fixture fixture(small_options(), 3 * kBlocks * kPage);
  std::mt19937 random(1);
  std::vector<CUdeviceptr> blocks;
  for (std::uint64_t i = 0; i < kBlocks; ++i) blocks.push_back(fixture.allocate_pages(2));
  for (int round = 0; round < 500; ++round) {
    std::shuffle(blocks.begin(), blocks.end(), random);
    const std::uint64_t count = 2 + random() % (kBlocks - 2);
    for (std::uint64_t i = 0; i < count; ++i) fixture.free(blocks[i]);
    fixture.free(fixture.allocate_pages(2 * count));
    for (std::uint64_t i = 0; i < count; ++i) blocks[i] = fixture.allocate_pages(2);
    fixture.driver.finish_all_work();
  }
}

TEST_CASE("the idle end of a view in use is released", "[serve][dynamic]") {
  Fixture fixture;
  fixture.scatter(6);
  const CUdeviceptr view = fixture.allocate_pages(6);
  fixture.free(view);
  REQUIRE(fixture.allocate_pages(4) == view);
  fixture.driver.finish_all_work();
  const std::uint64_t before = fixture.physical();
  fixture.heap->trim(0);
  REQUIRE(fixture.physical() == before - 2 * kPage);
  REQUIRE(fixture.driver.physical(view + 3 * kPage) != 0);
  REQUIRE_THROWS_AS(fixture.driver.physical(view + 4 * kPage), FakeDriver::Misuse);
}

namespace {

// A view whose last four of six pages are in use, and blocks elsewhere of which every other one is in use.
struct ViewInUse {
  explicit ViewInUse(Fixture* fixture) : blocks(fixture->scatter(6)) {
    const CUdeviceptr view = fixture->allocate_pages(6);
    fixture->free(view);
    const CUdeviceptr front = fixture->allocate_pages(2);
    REQUIRE(fixture->driver.physical(view) == fixture->driver.physical(front));
    weights = fixture->allocate_pages(4);
    REQUIRE(weights == view + 2 * kPage);
    fixture->free(front);
  }
  std::vector<CUdeviceptr> blocks;
  CUdeviceptr weights = 0;
};

}  // namespace

TEST_CASE("what lives in a view does not keep the other handles of the view", "[serve][dynamic]") {
  Fixture fixture;
  const ViewInUse made(&fixture);
  REQUIRE(fixture.physical() == 12 * kPage);
  synchronize(*fixture.heap, fixture.driver);
  fixture.heap->trim(0);
  REQUIRE(fixture.physical() == 10 * kPage);
  REQUIRE_THROWS_AS(fixture.driver.physical(made.weights - kPage), FakeDriver::Misuse);
  const std::vector<std::uint64_t> shown = physical_of(&fixture, made.weights, 4);
  // The view is not used where it shows nothing, and not repaired while it does so.
  fixture.allocate_pages(2);
  REQUIRE(fixture.physical() == 12 * kPage);
  fixture.free(made.weights);
  REQUIRE(fixture.allocate_pages(4) == made.weights);
  REQUIRE(physical_of(&fixture, made.weights, 4) == shown);
  fixture.free(made.weights);
  const CUdeviceptr larger = fixture.allocate_pages(6);
  REQUIRE(larger != made.weights - 2 * kPage);
  fixture.free(larger);
  synchronize(*fixture.heap, fixture.driver);
  fixture.heap->trim(0);
  REQUIRE(fixture.physical() == 8 * kPage);
}

TEST_CASE("a peer can use what lives in a view that shows nothing elsewhere", "[serve][dynamic]") {
  Fixture fixture;
  const ViewInUse made(&fixture);
  synchronize(*fixture.heap, fixture.driver);
  fixture.heap->trim(0);
  REQUIRE_THROWS_AS(fixture.driver.physical(made.weights - kPage), FakeDriver::Misuse);
  REQUIRE(fixture.heap->grant_access(3) == CUDA_SUCCESS);
  for (std::uint64_t page = 0; page < 4; ++page) {
    REQUIRE_NOTHROW(fixture.driver.physical(made.weights + page * kPage, 3));
  }
}

TEST_CASE("a peer gets access to all other memory if the driver refuses it for a part", "[serve][dynamic]") {
  Fixture fixture;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(fixture.allocate_pages(1));
  fixture.driver.fail_at(3, CUDA_ERROR_UNKNOWN);
  REQUIRE(fixture.heap->grant_access(3) == CUDA_ERROR_UNKNOWN);
  int refused = 0;
  for (const CUdeviceptr block : blocks) {
    try {
      fixture.driver.physical(block, 3);
    } catch (const FakeDriver::Misuse&) {
      ++refused;
    }
  }
  REQUIRE(refused == 1);
}

TEST_CASE("addresses of a view that could not be unmapped are not used again", "[serve][dynamic]") {
  Fixture fixture;
  const ViewInUse made(&fixture);
  fixture.driver.finish_all_work();
  const auto call = static_cast<std::uint64_t>(GENERATE(range(1, 12)));
  CAPTURE(call);
  fixture.driver.fail_at(call, CUDA_ERROR_UNKNOWN);
  fixture.heap->trim(0);
  fixture.driver.fail_at(0);
  std::vector<CUdeviceptr> others;
  for (const std::uint64_t pages : {6, 2, 4, 8}) {
    others.push_back(fixture.allocate_pages(pages));
    REQUIRE((others.back() + pages * kPage <= made.weights || others.back() >= made.weights + 4 * kPage));
    REQUIRE_NOTHROW(physical_of(&fixture, others.back(), pages));
  }
  for (const CUdeviceptr block : others) fixture.free(block);
  fixture.free(made.weights);
  for (std::size_t i = 1; i < made.blocks.size(); i += 2) fixture.free(made.blocks[i]);
  synchronize(*fixture.heap, fixture.driver);
  fixture.heap->trim(0);
  REQUIRE(fixture.physical() == 0);
}

TEST_CASE("without stitching, memory grows", "[serve][dynamic]") {
  HeapOptions options = small_options();
  options.policy.stitch = false;
  Fixture fixture(options);
  const CUdeviceptr first = fixture.allocate_pages(2);
  fixture.allocate_pages(2);
  fixture.free(first);
  fixture.allocate_pages(4);
  REQUIRE(fixture.physical() == 8 * kPage);
  REQUIRE(fixture.statistics().stitches == 0);
}

TEST_CASE("the view cache keeps to its limit", "[serve][dynamic]") {
  HeapOptions options = small_options();
  options.policy.kept_views = 2;
  Fixture fixture(options);
  fixture.scatter(12);
  for (const std::uint64_t pages : {4, 6, 8, 10, 12}) {
    fixture.free(fixture.allocate_pages(pages));
    fixture.driver.finish_all_work();
    REQUIRE(fixture.statistics().views <= 2);
  }
  REQUIRE(fixture.statistics().stitches > 2);
}

TEST_CASE("a view can be replaced when its own work is complete, whatever else uses its bytes", "[serve][dynamic]") {
  HeapOptions options = small_options();
  options.policy.kept_views = 1;
  Fixture fixture(options);
  fixture.scatter(8);
  const CUdeviceptr stitched = fixture.allocate_pages(4);
  fixture.driver.work(fixture.stream);
  fixture.free(stitched);
  fixture.allocate_pages(6);  // memory grows; the next free has an event
  REQUIRE(fixture.statistics().stitches == 1);
  REQUIRE(fixture.driver.physical(stitched) != 0);  // still mapped
  fixture.free(fixture.allocate_pages(2));
  fixture.driver.finish_all_work();
  const CUdeviceptr at_home = fixture.allocate_pages(2);
  fixture.driver.work(fixture.stream);
  fixture.free(at_home);
  fixture.allocate_pages(6);
  REQUIRE(fixture.statistics().stitches == 2);
  REQUIRE(fixture.statistics().views == 1);
}

TEST_CASE("bytes of another stream are used when their last use is complete", "[serve][dynamic]") {
  HeapOptions options = small_options();
  options.cross_stream = CrossStream::Never;
  Fixture fixture(options);
  const CUdeviceptr first = fixture.allocate_pages(4);
  fixture.driver.work(fixture.stream);
  fixture.free(first);
  REQUIRE(fixture.allocate_pages_on(fixture.other, 4) != first);
  fixture.free(fixture.allocate_pages(1));  // has an event, since one was missed
  fixture.driver.finish_all_work();
  REQUIRE(fixture.allocate_pages_on(fixture.other, 4) == first);
  REQUIRE(fixture.statistics().waits == 0);
  REQUIRE(fixture.statistics().borrows == 1);
}

TEST_CASE("the treatment of another stream's pending bytes is an option", "[serve][dynamic]") {
  const auto choice =
      GENERATE(CrossStream::OrderThenGrow, CrossStream::GrowThenOrder, CrossStream::Never, CrossStream::Share);
  const bool waits = choice == CrossStream::OrderThenGrow || choice == CrossStream::Share;
  HeapOptions options = small_options();
  options.cross_stream = choice;
  Fixture fixture(options);
  const CUdeviceptr first = fixture.allocate_pages(4);
  fixture.driver.work(fixture.stream);
  fixture.free(first);
  fixture.allocate_pages_on(fixture.other, 1);  // the stream is known from now on
  fixture.driver.work(fixture.stream);
  const CUdeviceptr second = fixture.allocate_pages(4);
  fixture.driver.work(fixture.stream);
  fixture.free(second);
  fixture.driver.work(fixture.stream);
  const std::uint64_t before = fixture.physical();
  fixture.allocate_pages_on(fixture.other, 3);
  const bool grew = fixture.physical() > before;
  REQUIRE(grew == !waits);
  REQUIRE((fixture.statistics().waits > 0) == waits);
  REQUIRE((fixture.statistics().borrows > 0) == waits);
}

TEST_CASE("shared memory: the best place is taken, although another stream freed it", "[serve][dynamic]") {
  const bool shared = GENERATE(false, true);
  HeapOptions options = small_options();
  options.cross_stream = shared ? CrossStream::Share : CrossStream::OrderThenGrow;
  Fixture fixture(options);
  const CUdeviceptr best = fixture.allocate_pages(4);
  fixture.allocate_pages(1);  // keeps the two blocks apart
  const CUdeviceptr own = fixture.allocate_pages_on(fixture.other, 6);
  fixture.driver.work(fixture.stream);
  fixture.free(best);
  fixture.driver.work(fixture.other);
  REQUIRE(fixture.heap->free_async(own, fixture.other) == CUDA_SUCCESS);
  REQUIRE(fixture.allocate_pages_on(fixture.other, 4) == (shared ? best : own));
  REQUIRE(fixture.statistics().waits == (shared ? 1 : 0));
  REQUIRE(fixture.statistics().borrows == (shared ? 1 : 0));
}

namespace {

// The program makes a stream wait for all work that another stream has been given so far.
void order_behind(Fixture* fixture, StreamKey waiter, StreamKey owner) {
  serve::StreamClock* clock = fixture->heap->clock(waiter);
  REQUIRE(clock != nullptr);
  clock->raise(fixture->heap->clock(owner)->ordinal(), fixture->heap->clocks().latest_number());
}

}  // namespace

TEST_CASE("shared memory: a wait that the program will make itself is avoided if there is another place",
          "[serve][dynamic]") {
  const bool program_orders = GENERATE(false, true);
  HeapOptions options = small_options();
  options.cross_stream = CrossStream::Share;
  Fixture fixture(options);
  const CUdeviceptr first = fixture.allocate_pages(2);
  fixture.allocate_pages(1);  // keeps the two blocks apart
  const CUdeviceptr best = fixture.allocate_pages(4);
  fixture.allocate_pages(1);
  const CUdeviceptr own = fixture.allocate_pages_on(fixture.other, 6);
  fixture.driver.work(fixture.stream);
  fixture.free(first);
  if (program_orders) order_behind(&fixture, fixture.other, fixture.stream);
  REQUIRE(fixture.allocate_pages_on(fixture.other, 2) == first);
  REQUIRE(fixture.statistics().waits == (program_orders ? 0 : 1));
  fixture.driver.work(fixture.stream);
  fixture.free(best);
  fixture.driver.work(fixture.other);
  REQUIRE(fixture.heap->free_async(own, fixture.other) == CUDA_SUCCESS);
  REQUIRE(fixture.allocate_pages_on(fixture.other, 4) == (program_orders ? own : best));
  REQUIRE(fixture.statistics().waits == (program_orders ? 0 : 2));
  if (!program_orders) return;
  fixture.allocate_pages_on(fixture.other, 2);
  REQUIRE(fixture.allocate_pages_on(fixture.other, 3) == best);  // no other place is free
  REQUIRE(fixture.statistics().waits == 1);
}

TEST_CASE("shared memory: a slot of a plan is not taken to avoid a wait", "[serve][dynamic]") {
  HeapOptions options = small_options();
  options.cross_stream = CrossStream::Share;
  options.max_bytes_beside_plan = 0;
  options.policy.stitch = false;
  const plan::DevicePlan plan = plan_of_sizes({8 * kPage});
  Fixture fixture(options, std::uint64_t{1} << 30, &plan);
  const CUdeviceptr of_plan = fixture.allocate_pages_on(fixture.other, plan.physical_bytes / kPage);
  const CUdeviceptr larger = fixture.allocate_pages(10);
  fixture.free(larger);
  order_behind(&fixture, fixture.other, fixture.stream);
  const CUdeviceptr again = fixture.allocate_pages_on(fixture.other, 10);
  REQUIRE(again == larger);  // so it is known that the program orders these streams
  REQUIRE(fixture.heap->free_async(of_plan, fixture.other) == CUDA_SUCCESS);
  fixture.driver.work(fixture.stream);
  REQUIRE(fixture.heap->free_async(again, fixture.stream) == CUDA_SUCCESS);
  REQUIRE(fixture.heap->idle_plan_bytes() == plan.physical_bytes);
  fixture.allocate_pages_on(fixture.other, 4);
  REQUIRE(fixture.statistics().waits == 1);
  REQUIRE(fixture.heap->idle_plan_bytes() == plan.physical_bytes);
}

TEST_CASE("shared memory: a stream that waits for a large free does not wait for work after it", "[serve][dynamic]") {
  const bool shared = GENERATE(false, true);
  HeapOptions options = small_options();
  if (GENERATE(false, true)) options.policy.deferred_free_bytes = 0;
  options.cross_stream = shared ? CrossStream::Share : CrossStream::OrderThenGrow;
  Fixture fixture(options);
  fixture.allocate_pages_on(fixture.other, 1);
  const CUdeviceptr first = fixture.allocate_pages(4);
  const Moment before = fixture.driver.work(fixture.stream);
  fixture.free(first);
  const Moment behind = fixture.driver.work(fixture.stream);
  REQUIRE(fixture.allocate_pages_on(fixture.other, 4) == first);
  REQUIRE(fixture.driver.is_ordered(fixture.other, before));
  REQUIRE_FALSE(fixture.driver.is_ordered(fixture.other, behind));
}

TEST_CASE("trim releases idle memory and keeps live memory", "[serve][dynamic]") {
  Fixture fixture;
  const CUdeviceptr kept = fixture.allocate_pages(2);
  const CUdeviceptr given = fixture.allocate_pages(6);
  fixture.driver.work(fixture.stream);
  fixture.free(given);
  REQUIRE(fixture.heap->trim(0) == 0);  // its work is pending, and the heap does not wait for it
  REQUIRE(fixture.heap->may_release_more());
  synchronize(*fixture.heap, fixture.driver);
  REQUIRE(fixture.heap->trim(0) == 6 * kPage);
  REQUIRE(fixture.physical() == 2 * kPage);
  REQUIRE(fixture.driver.physical(kept) != 0);
  fixture.free(fixture.allocate_pages(6));
  REQUIRE(fixture.heap->trim(4 * kPage) == 4 * kPage);
}

TEST_CASE("pressure: other streams' bytes, then the plan's idle bytes, then nothing and one line", "[serve][dynamic]") {
  const plan::DevicePlan plan = plan_of_sizes({4 * kPage - 512});
  Fixture fixture(small_options(), plan.physical_bytes + 4 * kPage, &plan);
  const CUdeviceptr all = fixture.allocate_pages(4);
  fixture.allocate_pages(2);  // no other memory is left, so it is served from the plan
  REQUIRE(fixture.statistics().borrows == 1);
  REQUIRE(last_log.empty());
  const serve::Statistics before = fixture.statistics();
  REQUIRE_FALSE(fixture.heap->allocate(4 * kPage, fixture.stream, nullptr));
  REQUIRE(last_log.find("no memory for a request") != std::string::npos);
  const serve::Statistics after = fixture.statistics();
  REQUIRE(after.misses == 1);
  REQUIRE(after.physical == before.physical);
  REQUIRE(after.dynamic_live == before.dynamic_live);
  fixture.free(all);
  fixture.allocate_pages(4);
}

TEST_CASE("a request whose slot's bytes are borrowed is served dynamically", "[serve][dynamic]") {
  const plan::DevicePlan plan = plan_of_sizes({3 * kPage});
  Fixture fixture(small_options(), plan.physical_bytes + 4 * kPage, &plan);
  const CUdeviceptr all = fixture.allocate_pages(4);
  const CUdeviceptr borrowed = fixture.allocate_pages(2);
  fixture.free(all);
  const auto wanted = fixture.heap->allocate(3 * kPage, fixture.stream, nullptr);
  REQUIRE(wanted);
  fixture.free(borrowed);
}

TEST_CASE("free bytes of the plan are used before memory grows, and free slots are still served", "[serve][dynamic]") {
  const plan::DevicePlan plan = plan_of_sizes({3 * kPage, 3 * kPage});
  HeapOptions options = small_options();
  options.max_bytes_beside_plan = 0;
  Fixture fixture(options, std::uint64_t{1} << 30, &plan);
  const CUdeviceptr unforeseen = fixture.allocate_pages(2);
  const CUdeviceptr refused = fixture.allocate_pages(3);  // its slot is taken, but other bytes of the plan are free
  REQUIRE(fixture.statistics().planned_requests == 0);
  REQUIRE(fixture.statistics().borrows == 2);
  fixture.free(unforeseen);
  fixture.free(refused);
  const CUdeviceptr slot = fixture.allocate_pages(3);
  REQUIRE(fixture.statistics().planned_requests == 1);
  REQUIRE(fixture.statistics().physical == plan.physical_bytes);
  fixture.free(slot);
  REQUIRE(fixture.statistics().planned_live == 0);
  REQUIRE(fixture.statistics().dynamic_live == 0);
}

TEST_CASE("a request whose slot is taken gets bytes that no slot needs while it lives", "[serve][dynamic]") {
  plan::DevicePlan plan = plan_of_handles({8});
  const std::vector<std::uint64_t> offsets{0, 0, 2, 4, 6};
  for (const std::uint64_t page : offsets) {
    plan::Slot& slot = add_slot(&plan, 2 * kPage, page * kPage);
    slot.lower = slot.id;
    slot.upper = slot.id + 1;
  }
  plan.slots[1].upper = 3;
  plan.body = static_cast<std::uint32_t>(plan.slots.size());
  HeapOptions options = small_options();
  options.max_bytes_beside_plan = 0;
  Fixture fixture(options, std::uint64_t{1} << 30, &plan);
  const CUdeviceptr late = fixture.allocate_pages(2);
  const CUdeviceptr displaced = fixture.allocate_pages(2);  // not in slot 2's place, which begins before it is freed
  const CUdeviceptr third = fixture.allocate_pages(2);
  REQUIRE(third == late + 2 * kPage);
  for (const CUdeviceptr address : {late, displaced, third}) fixture.free(address);
  fixture.allocate_pages(2);
  fixture.allocate_pages(2);
  REQUIRE(fixture.statistics().refused_slots == 1);
  REQUIRE(fixture.statistics().borrows == 1);
  REQUIRE(fixture.statistics().planned_requests == 4);
  REQUIRE(fixture.physical() == plan.physical_bytes);
}

TEST_CASE("a request whose slot is taken gets a place that is withheld if it is freed before that slot begins",
          "[serve][dynamic]") {
  const bool in_time = GENERATE(true, false);
  plan::DevicePlan plan = plan_of_handles({6});
  const std::vector<std::uint64_t> offsets{0, 0, 2, 0};  // slot 2 lives through the body, which is slot 3
  for (const std::uint64_t page : offsets) {
    plan::Slot& slot = add_slot(&plan, 2 * kPage, page * kPage);
    slot.lower = slot.id;
    slot.upper = slot.id + 1;
  }
  plan.slots[1].upper = in_time ? 2 : 3;
  plan.slots[2].upper = 4;
  plan.prologue = 3;
  plan.body = 1;
  HeapOptions options = small_options();
  options.max_bytes_beside_plan = 0;
  Fixture fixture(options, std::uint64_t{1} << 30, &plan);
  const CUdeviceptr late = fixture.allocate_pages(2);
  const CUdeviceptr displaced = fixture.allocate_pages(2);
  REQUIRE(displaced == late + (in_time ? 2 : 4) * kPage);
  if (in_time) fixture.free(displaced);
  REQUIRE(fixture.allocate_pages(2) == late + 2 * kPage);
}

TEST_CASE("places of slots that live through the body serve other requests only if there is no other place",
          "[serve][dynamic]") {
  plan::DevicePlan plan = plan_of_sizes({2 * kPage, 5 * kPage, 7 * kPage});
  plan.prologue = 2;
  plan.body = 1;
  plan.slots[0].upper = 3;
  plan.slots[1].upper = 2;
  HeapOptions options = small_options();
  options.max_bytes_beside_plan = 0;
  Fixture fixture(options, std::uint64_t{1} << 30, &plan);
  const bool little = GENERATE(true, false);
  const CUdeviceptr unforeseen = fixture.allocate_pages(little ? 1 : 13);
  REQUIRE(fixture.statistics().borrows == 1);
  REQUIRE(fixture.physical() == plan.physical_bytes);
  REQUIRE(fixture.heap->free_bytes() == plan.physical_bytes - (little ? 1 : 13) * kPage);
  REQUIRE(fixture.heap->idle_plan_bytes() == fixture.heap->free_bytes());
  if (little) {
    fixture.allocate_pages(2);
    REQUIRE(fixture.statistics().planned_requests == 1);
  }
  fixture.free(unforeseen);
}

TEST_CASE("a request that fails at any call changes neither the figures nor the memory", "[serve][dynamic]") {
  for (std::uint64_t call = 1; call < 40; ++call) {
    CAPTURE(call);
    Fixture fixture;
    fixture.scatter(6);
    const serve::Statistics before = fixture.statistics();
    fixture.driver.fail_at(call);
    const auto served = fixture.heap->allocate(9 * kPage, fixture.stream, nullptr);
    fixture.driver.fail_at(0);
    const serve::Statistics after = fixture.statistics();
    if (served) {
      REQUIRE(after.dynamic_live == before.dynamic_live + 9 * kPage);
      continue;
    }
    REQUIRE(after.dynamic_live == before.dynamic_live);
    REQUIRE(after.physical <= before.physical);
    fixture.allocate_pages(9);
    fixture.heap.reset();
  }
}

TEST_CASE("memory for every stream at once has no pending work", "[serve][dynamic]") {
  Fixture fixture;
  const CUdeviceptr first = fixture.allocate_pages(4);
  fixture.driver.work(fixture.stream);
  fixture.free(first);
  const auto pending = fixture.heap->allocate_sync(4 * kPage);
  REQUIRE(pending);
  REQUIRE(*pending != first);
  REQUIRE(fixture.physical() == 8 * kPage);
  REQUIRE(fixture.heap->free_sync(*pending) == CUDA_SUCCESS);
  REQUIRE(fixture.physical() == 4 * kPage);  // memory that cuMemFree frees can be used on every stream
  REQUIRE(fixture.heap->allocate_sync(4 * kPage) == first);
  REQUIRE(fixture.physical() == 4 * kPage);
}

TEST_CASE("for a request for every stream, memory grows although a page with pending work has free bytes",
          "[serve][dynamic]") {
  Fixture fixture;
  const auto part = fixture.heap->allocate(kPage / 2, fixture.stream, nullptr);
  fixture.driver.work(fixture.stream);
  REQUIRE(fixture.heap->free_async(*part, fixture.stream) == CUDA_SUCCESS);
  const std::uint64_t calls = fixture.driver.order_calls();
  REQUIRE(fixture.heap->allocate_sync(8 * kPage));
  REQUIRE(fixture.statistics().misses == 0);
  REQUIRE(fixture.driver.order_calls() <= calls + 4);  // queries, and no wait
}

TEST_CASE("memory above the release threshold is released when the program synchronizes", "[serve][dynamic]") {
  Fixture fixture;
  fixture.heap->set_release_threshold(nullptr, 4 * kPage);
  const CUdeviceptr first = fixture.allocate_pages(4);
  const CUdeviceptr second = fixture.allocate_pages(4);
  fixture.driver.work(fixture.stream);
  fixture.free(first);
  fixture.free(second);
  REQUIRE(fixture.physical() == 8 * kPage);
  const std::uint64_t calls = fixture.driver.order_calls();
  fixture.heap->after_synchronization();     // with another stream
  REQUIRE(fixture.physical() == 8 * kPage);  // the work of the stream is still pending
  REQUIRE(fixture.driver.order_calls() == calls);
  synchronize(*fixture.heap, fixture.driver);
  REQUIRE(fixture.physical() == 4 * kPage);
}

TEST_CASE("a program that synchronizes all the time keeps its memory once that has cost enough", "[serve][dynamic]") {
  HeapOptions options = small_options();
  options.policy.mapping_allowance = 1;
  options.policy.elapsed_per_mapping = std::uint64_t{1} << 40;
  Fixture fixture(options);
  fixture.heap->set_release_threshold(nullptr, 0);
  int rounds = 0;
  do {
    fixture.free(fixture.allocate_pages(64));
    synchronize(*fixture.heap, fixture.driver);
  } while (fixture.physical() == 0 && ++rounds < 100'000);
  REQUIRE(fixture.physical() >= 64 * kPage);
  REQUIRE(rounds > 0);
  const std::uint64_t mapped = fixture.statistics().mapping_calls_after_start;
  fixture.free(fixture.allocate_pages(64));
  REQUIRE(fixture.statistics().mapping_calls_after_start == mapped);
  synchronize(*fixture.heap, fixture.driver);
  REQUIRE(fixture.heap->trim(0) >= 64 * kPage);  // an explicit trim is always made
  REQUIRE(fixture.physical() == 0);
}

TEST_CASE("the largest release threshold of all pools counts", "[serve][dynamic]") {
  Fixture fixture;
  const auto pool = reinterpret_cast<CUmemoryPool>(0x10);
  fixture.heap->set_release_threshold(nullptr, 0);
  fixture.heap->set_release_threshold(pool, ~std::uint64_t{0});
  fixture.free(fixture.allocate_pages(4));
  synchronize(*fixture.heap, fixture.driver);
  REQUIRE(fixture.physical() == 4 * kPage);
  fixture.heap->pool_destroyed(pool);
  fixture.heap->after_synchronization();
  REQUIRE(fixture.physical() == 0);
}

TEST_CASE("bytes of a stream that is not watched are missed once, and the stream is then watched for twice as long",
          "[serve][dynamic]") {
  Fixture fixture;
  fixture.free(fixture.allocate_pages_on(fixture.other, 1), fixture.other);
  synchronize(*fixture.heap, fixture.driver);
  const auto use_and_free = [&](StreamKey key) {
    const CUdeviceptr block = fixture.allocate_pages_on(key, 8);
    fixture.driver.work(key);
    fixture.free(block, key);
  };
  use_and_free(fixture.stream);
  use_and_free(fixture.other);
  REQUIRE(fixture.statistics().waits == 1);  // one block serves both streams
  REQUIRE(fixture.physical() == 8 * kPage);
  for (const bool is_watched : {false, true, true}) {
    for (std::uint64_t i = 0; i <= serve::StreamOrder::kWatchedFrees; ++i) use_and_free(fixture.stream);
    const std::uint64_t waits = fixture.statistics().waits;
    use_and_free(fixture.other);
    REQUIRE(fixture.statistics().waits == waits + (is_watched ? 1 : 0));
    REQUIRE(fixture.physical() == 16 * kPage);
  }
}

TEST_CASE("a request for a large part of the device is made of few handles", "[serve][dynamic]") {
  constexpr std::uint64_t kMemory = 65536 * kPage;
  Fixture fixture(small_options(), kMemory);
  fixture.allocate_pages(kMemory / kPage / 2);
  const std::uint64_t calls = fixture.statistics().mapping_calls_after_start;
  REQUIRE(calls <= 2 * 256 + 1);
}

TEST_CASE("if the device or a limit has little memory left, handles are small", "[serve][dynamic]") {
  constexpr std::uint64_t kHeld = 60'000;
  const auto calls_for_more = [](std::uint64_t memory_pages, std::uint64_t limit_pages) {
    Fixture fixture(small_options(), memory_pages * kPage);
    fixture.heap->set_limit(limit_pages * kPage);
    for (std::uint64_t held = 0; held < kHeld; held += 500) fixture.allocate_pages(500);
    const std::uint64_t calls = fixture.statistics().mapping_calls_after_start;
    fixture.allocate_pages(140);
    return fixture.statistics().mapping_calls_after_start - calls;
  };
  const std::uint64_t pages_of_handle = std::bit_floor(kHeld / plan::OnlinePolicy().held_per_handle);
  REQUIRE(pages_of_handle > 1);
  REQUIRE(calls_for_more(1'000'000, 1'000'000) <= 2 * 140 / pages_of_handle + 1);
  REQUIRE(calls_for_more(kHeld + 4000, 1'000'000) >= 2 * 140);
  REQUIRE(calls_for_more(1'000'000, kHeld + 4000) >= 2 * 140);
}

TEST_CASE("a thread that works on another device gets memory of the stream's device", "[serve][dynamic]") {
  Fixture fixture;
  REQUIRE(fixture.driver.push_context(FakeDriver::other_context()) == CUDA_SUCCESS);
  fixture.allocate_pages(64);  // so large that the device's free memory is queried
  REQUIRE(fixture.driver.pop_context() == CUDA_SUCCESS);
}

TEST_CASE("a request that cannot be served costs one query and changes no view or handle", "[serve][dynamic]") {
  constexpr std::uint64_t kMemory = 64;
  Fixture fixture(small_options(), kMemory * kPage);
  fixture.scatter(12);
  fixture.free(fixture.allocate_pages(8));
  fixture.driver.finish_all_work();
  const serve::Statistics before = fixture.statistics();
  REQUIRE_FALSE(fixture.heap->allocate(kMemory * kPage, fixture.stream, nullptr));
  REQUIRE_FALSE(fixture.heap->allocate_sync(kMemory * kPage));
  REQUIRE(fixture.heap->make_room(kMemory * kPage, true) == 0);
  REQUIRE(fixture.statistics().mapping_calls_after_start == before.mapping_calls_after_start);
  REQUIRE(fixture.statistics().views == before.views);
  REQUIRE(fixture.heap->make_room(16 * kPage, true) > 0);
}

TEST_CASE("a plan's idle memory is given back for CUDA's own requests if the device has too little without it",
          "[serve][dynamic]") {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  constexpr std::uint64_t kFree = 64 * kMiB;
  const plan::DevicePlan plan = plan_of_sizes({2 * kPage, 5 * kPage, 7 * kPage});
  HeapOptions options = small_options();
  options.dynamic = GENERATE(true, false);
  options.plan_is_strict = GENERATE(false, true);
  Fixture fixture(options, plan.physical_bytes + kFree, &plan);
  const CUdeviceptr live = fixture.allocate_pages(2);
  REQUIRE(fixture.heap->make_room(60 * kMiB, true) == 0);  // it is in the plan's only handle
  const CUdeviceptr second = fixture.allocate_pages(5);
  REQUIRE(fixture.statistics().planned_requests == 2);  // so the plan is kept
  fixture.free(live);
  fixture.free(second);
  fixture.driver.finish_all_work();
  REQUIRE(fixture.heap->make_room(16 * kMiB, true) == 0);  // it was refused for another reason
  REQUIRE(fixture.heap->make_room(0, true) == 0);
  REQUIRE(fixture.heap->make_room(60 * kMiB, false) == 0);
  REQUIRE(last_log.empty());
  const std::uint64_t given_back = fixture.heap->make_room(60 * kMiB, true);
  if (options.plan_is_strict) {
    REQUIRE(given_back == 0);
    fixture.allocate_pages(7);
    REQUIRE(fixture.statistics().planned_requests == 3);
    return;
  }
  REQUIRE(given_back == plan.physical_bytes);
  REQUIRE(fixture.physical() == 0);
  REQUIRE(last_log.find("the plan is no longer used") != std::string::npos);
  (void)fixture.heap->allocate(7 * kPage, fixture.stream, nullptr);
  REQUIRE(fixture.statistics().planned_requests == 2);
}

TEST_CASE("memory that CUDA's own pool keeps idle serves requests here", "[serve][dynamic]") {
  Fixture f(small_options(), 128 * kPage);
  f.allocate_pages(2);
  f.driver.keep_in_pool(120 * kPage);
  f.allocate_pages(16);
  REQUIRE(last_log.empty());
  REQUIRE_FALSE(f.heap->allocate(128 * kPage, f.stream, nullptr));  // there is not enough memory even so
  REQUIRE_FALSE(last_log.empty());
}

TEST_CASE("a dropped plan's memory serves dynamic requests", "[serve][dynamic]") {
  const plan::DevicePlan plan = plan_of_sizes({8 * kPage});
  Fixture fixture(small_options(), std::uint64_t{1} << 30, &plan);
  const std::uint64_t planned = fixture.physical();
  for (int i = 0; i < 1100; ++i) fixture.free(fixture.allocate_pages(1));
  REQUIRE(last_log.find("does not fit") != std::string::npos);
  const std::uint64_t before = fixture.physical();
  const CUdeviceptr large = fixture.allocate_pages(8);
  REQUIRE(fixture.physical() == before);
  fixture.free(large);
  synchronize(*fixture.heap, fixture.driver);
  REQUIRE(fixture.heap->trim(0) >= planned);
  REQUIRE(fixture.physical() == 0);
}

TEST_CASE("what a dropped plan gives back counts no longer towards a limit", "[serve][dynamic]") {
  const bool trims = GENERATE(true, false);
  const plan::DevicePlan plan = plan_of_sizes({8 * kPage});
  Fixture fixture(small_options(), std::uint64_t{1} << 30, &plan);
  fixture.heap->set_limit(fixture.physical() + 4 * kPage);
  const std::uint64_t limit = fixture.physical() + 4 * kPage;
  for (int i = 0; i < 1100; ++i) fixture.free(fixture.allocate_pages(1));
  REQUIRE(last_log.find("does not fit") != std::string::npos);
  fixture.driver.finish_all_work();
  if (trims) fixture.heap->trim(0);
  fixture.allocate_pages(limit / kPage);
  REQUIRE(fixture.physical() <= limit);
  REQUIRE_FALSE(fixture.heap->allocate(kPage, fixture.stream, nullptr));
}

TEST_CASE("a peer can use memory that was mapped before and after its access was granted", "[serve][dynamic]") {
  Fixture fixture;
  const CUdeviceptr before = fixture.allocate_pages(2);
  REQUIRE(fixture.heap->grant_access(3) == CUDA_SUCCESS);
  const CUdeviceptr after = fixture.allocate_pages(2);
  REQUIRE(fixture.driver.physical(before, 3) != 0);
  REQUIRE(fixture.driver.physical(after, 3) != 0);
}

TEST_CASE("a new pool with the handle of a destroyed one starts from zero", "[serve][dynamic]") {
  Fixture fixture;
  const auto pool = reinterpret_cast<CUmemoryPool>(0x10);
  const auto address = fixture.heap->allocate(kPage, fixture.stream, pool);
  REQUIRE(address);
  REQUIRE(fixture.heap->pool_use(pool).used == kPage);
  REQUIRE(fixture.statistics().pool_live_peak == kPage);
  fixture.free(*address);
  fixture.heap->pool_destroyed(pool);
  REQUIRE_FALSE(fixture.heap->pool_use(pool).known);
  fixture.free(*fixture.heap->allocate(512, fixture.stream, pool));
  REQUIRE(fixture.heap->pool_use(pool).used_high == 512);
}

TEST_CASE("a simulation without a device holds as much as the heap", "[serve][dynamic]") {
  const auto seed = GENERATE(range(1U, 6U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const HeapOptions run_time = small_options();
  Fixture fixture(run_time, std::uint64_t{1} << 34);
  plan::SimulatedAllocator simulated(plan::simulation_options(kPage, 4000 * kPage, run_time.policy));
  struct Block {
    CUdeviceptr address;
    plan::Place place;
    std::uint64_t bytes;
  };
  std::vector<Block> live;
  for (int step = 0; step < 3000; ++step) {
    if (!live.empty() && (live.size() > 60 || random() % 2 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      fixture.free(live.back().address);
      synchronize(*fixture.heap, fixture.driver);  // in the simulation, every free is complete
      simulated.defer_free(live.back().place, live.back().bytes, 1);
      live.pop_back();
      continue;
    }
    const std::uint64_t bytes = (1 + random() % (random() % 4 == 0 ? 40 : 4000)) * plan::kUnitBytes;
    const auto address = fixture.heap->allocate(bytes, fixture.stream, nullptr);
    const auto place = simulated.allocate(bytes, 1);
    REQUIRE((address && place));
    live.push_back({*address, *place, bytes});
    REQUIRE(fixture.physical() == simulated.placement().physical_bytes());
  }
  REQUIRE(simulated.counts().views > 0);
  const plan::SimulatedAllocator::Counts& counts = simulated.counts();
  REQUIRE(counts.repaired > 0);
  REQUIRE(fixture.statistics().stitches == counts.views + counts.repaired);
}

TEST_CASE("a program that repeats its steps maps nothing after the first few", "[serve][dynamic]") {
  Fixture fixture;
  std::uint64_t mapped = 0;
  for (int step = 0; step < 8; ++step) {
    if (step == 4) mapped = fixture.statistics().mapping_calls_after_start;
    std::vector<CUdeviceptr> blocks;
    for (const std::uint64_t pages : {3, 7, 2, 5, 9, 4}) blocks.push_back(fixture.allocate_pages(pages));
    for (std::size_t i = 0; i < blocks.size(); i += 2) fixture.free(blocks[i]);
    const CUdeviceptr stitched = fixture.allocate_pages(13);
    for (std::size_t i = 1; i < blocks.size(); i += 2) fixture.free(blocks[i]);
    fixture.free(stitched);
  }
  REQUIRE(mapped > 0);
  REQUIRE(fixture.statistics().mapping_calls_after_start == mapped);
}

TEST_CASE("memory that one stream allocates and another frees, repeatedly, is mapped once", "[serve][dynamic]") {
  Fixture fixture;
  std::uint64_t mapped = 0;
  for (int step = 0; step < 40; ++step) {
    if (step == 5) mapped = fixture.statistics().mapping_calls_after_start;
    const CUdeviceptr block = fixture.allocate_pages(5);
    fixture.driver.work(fixture.stream);
    REQUIRE(fixture.heap->free_async(block, fixture.other) == CUDA_SUCCESS);
    fixture.driver.work(fixture.other);
  }
  REQUIRE(fixture.statistics().mapping_calls_after_start == mapped);
}

namespace {

// Fully sharded training: a second stream gathers each layer's weights, the first one computes and frees them. In the
// backward pass, the second one reduces gradients that the first one has made. The device never completes any work.
// `program_orders`: like a real program, each stream waits for the work that the other was given before the previous
// layer began.
struct ShardedTraining {
  explicit ShardedTraining(bool orders) : fixture(options()), program_orders(orders) {}

  static HeapOptions options() {
    HeapOptions options = small_options();
    options.policy.small_bytes = 0;
    return options;
  }

  void give_on(CUdeviceptr address, StreamKey key) {
    fixture.driver.work(key);
    REQUIRE(fixture.heap->free_async(address, key) == CUDA_SUCCESS);
  }
  void begin_layer() {
    if (!program_orders) return;
    order_behind(&fixture, fixture.stream, fixture.other);
    order_behind(&fixture, fixture.other, fixture.stream);
  }
  void step() {
    std::vector<CUdeviceptr> activations;
    CUdeviceptr gathered = fixture.allocate_pages_on(fixture.other, 9);
    for (int layer = 0; layer < kLayers; ++layer) {
      begin_layer();
      const CUdeviceptr next = fixture.allocate_pages_on(fixture.other, layer % 3 == 0 ? 11 : 9);
      activations.push_back(fixture.allocate_pages(static_cast<std::uint64_t>(4 + layer % 4)));
      const CUdeviceptr scratch = fixture.allocate_pages(7);
      give_on(scratch, fixture.stream);
      give_on(gathered, fixture.stream);
      gathered = next;
    }
    for (int layer = kLayers; layer-- > 0;) {
      begin_layer();
      const CUdeviceptr next = fixture.allocate_pages_on(fixture.other, 9);
      const CUdeviceptr gradient = fixture.allocate_pages(10);
      const CUdeviceptr reduced = fixture.allocate_pages_on(fixture.other, 3);
      give_on(activations[static_cast<std::size_t>(layer)], fixture.stream);
      give_on(gradient, fixture.other);
      give_on(reduced, fixture.stream);
      give_on(gathered, fixture.stream);
      gathered = next;
    }
    give_on(gathered, fixture.stream);
  }

  static constexpr int kLayers = 12;
  Fixture fixture;
  bool program_orders;
};

}  // namespace

TEST_CASE("streams that take turns map nothing from the fourth step on, and wait less if the program orders them",
          "[serve][dynamic]") {
  std::vector<std::uint64_t> waits;  // in the last step
  for (const bool program_orders : {false, true}) {
    ShardedTraining training(program_orders);
    serve::Statistics third;
    serve::Statistics last;
    for (int step = 0; step < 10; ++step) {
      if (step == 3) third = training.fixture.statistics();
      last = training.fixture.statistics();
      training.step();
    }
    const serve::Statistics end = training.fixture.statistics();
    REQUIRE(end.mapping_calls_after_start == third.mapping_calls_after_start);
    REQUIRE(third.mapping_calls_after_start > 0);
    waits.push_back(end.waits - last.waits);
  }
  REQUIRE(waits[1] < waits[0]);
}

TEST_CASE("a stream that cannot wait for another one stitches the bytes that it may use at once", "[serve][dynamic]") {
  Fixture fixture;
  const CUdeviceptr first = fixture.allocate_pages(4);
  fixture.allocate_pages(1);
  fixture.free(first);  // the only stream so far: no event is recorded at this free
  const Moment work = fixture.driver.work(fixture.stream);
  std::vector<CUdeviceptr> freed;
  for (int i = 0; i < 2; ++i) {
    freed.push_back(fixture.allocate_pages_on(fixture.other, 2));
    fixture.allocate_pages_on(fixture.other, 1);
  }
  for (const CUdeviceptr address : freed) (void)fixture.heap->free_async(address, fixture.other);
  const std::uint64_t held = fixture.physical();
  fixture.allocate_pages_on(fixture.other, 4);
  REQUIRE(fixture.physical() == held);
  REQUIRE_FALSE(fixture.driver.is_ordered(fixture.other, work));
}

TEST_CASE("pressure: a stream waits for a late event if no other memory is left", "[serve][dynamic]") {
  const bool full = GENERATE(true, false);
  Fixture fixture(small_options(), (full ? 4 : 8) * kPage);
  const CUdeviceptr first = fixture.allocate_pages(4);
  fixture.free(first);  // the only stream so far: no event is recorded at this free
  const Moment later = fixture.driver.work(fixture.stream);
  REQUIRE((fixture.allocate_pages_on(fixture.other, 4) == first) == full);
  REQUIRE(fixture.driver.is_ordered(fixture.other, later) == full);
  REQUIRE(fixture.statistics().waits == (full ? 1 : 0));
}

TEST_CASE("pressure: cuMemAlloc gets the part of a free range on which no work is pending, and waits for none",
          "[serve][dynamic]") {
  const plan::DevicePlan plan = plan_of_sizes({8 * kPage - 512});
  Fixture fixture(small_options(), plan.physical_bytes, &plan);
  const CUdeviceptr first = fixture.allocate_pages(1);
  const Moment work = fixture.driver.work(fixture.stream);
  fixture.free(first);
  REQUIRE_FALSE(fixture.heap->allocate_sync(8 * kPage));
  const auto behind = fixture.heap->allocate_sync(5 * kPage);
  REQUIRE(behind);
  REQUIRE(*behind > first);
  REQUIRE_FALSE(fixture.driver.is_over(work));
}

TEST_CASE("pressure: cuMemAlloc gets a free range on which no work is pending, however many others fit better",
          "[serve][dynamic]") {
  constexpr std::uint64_t kPending = 6;  // free ranges of two pages, each followed by a page in use
  HeapOptions options = small_options();
  options.policy.stitch = false;
  const plan::DevicePlan plan = plan_of_sizes({(3 * kPending + 4) * kPage - 512});
  Fixture fixture(options, plan.physical_bytes, &plan);
  std::vector<CUdeviceptr> freed;
  CUdeviceptr last = 0;
  for (std::uint64_t i = 0; i < kPending; ++i) {
    freed.push_back(fixture.allocate_pages(2));
    last = fixture.allocate_pages(1);
  }
  const Moment work = fixture.driver.work(fixture.stream);
  for (const CUdeviceptr address : freed) fixture.free(address);
  const auto behind = fixture.heap->allocate_sync(2 * kPage);
  REQUIRE(behind);
  REQUIRE(*behind > last);
  REQUIRE_FALSE(fixture.driver.is_over(work));
}

TEST_CASE("pressure releases no more than a request needs", "[serve][dynamic]") {
  HeapOptions options = small_options();
  options.policy.stitch = false;
  Fixture fixture(options, 24 * kPage);
  fixture.scatter(12);
  fixture.allocate_pages(4);
  REQUIRE(fixture.physical() == 24 * kPage);
}
