// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/dynamic/dynamic.h"

#include <array>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "host_memory.h"
#include "interpose/serve/driver/clock.h"
#include "interpose/serve/dynamic/mapper.h"
#include "interpose/serve/planned/arena.h"
#include "interpose/serve/streams/stream_order.h"
#include "plans.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Arena;
using serve::Dynamic;
using serve::StreamOrder;

TEST_CASE("where host memory runs out, either all handles of a plan are adopted or none", "[serve][dynamic]") {
  constexpr std::uint64_t kDevice = 256 * kPage;
  FakeDriver driver(kPage, kDevice);
  std::string why;
  const plan::DevicePlan plan = plan_of_handles(std::vector<std::uint64_t>(20, 2));
  const std::unique_ptr<Arena> arena = Arena::create(driver, plan, &why);
  REQUIRE(arena);
  StreamOrder order(driver, FakeDriver::context(), arena->planned_bytes() + Dynamic::offset_bytes(kDevice, kPage),
                    kPage);
  const std::unique_ptr<Dynamic> dynamic =
      Dynamic::create(driver, 0, small_options(), arena->planned_bytes(), kPage, &order, &why);
  REQUIRE(dynamic);
  std::size_t refusals = 0;
  for (bool adopted = false; !adopted; ++refusals) {
    allocations_left = refusals + 1;
    try {
      dynamic->adopt(arena.get());
      adopted = true;
    } catch (const std::bad_alloc&) {
    }
    allocations_left = 0;
    REQUIRE(dynamic->handles().size() == (adopted ? plan.handles.size() : 0));
  }
  REQUIRE(refusals > plan.handles.size());
  dynamic->close();
}

TEST_CASE("the time of mapping is counted once, also where a mapping is undone", "[serve][dynamic]") {
  FakeDriver driver(kPage);
  std::string why;
  const auto begin = std::chrono::steady_clock::now();
  const std::unique_ptr<serve::Mapper> mapper = serve::Mapper::create(driver, 0, 8 * kPage, 8 * kPage, &why);
  REQUIRE(mapper);
  driver.before_unmap = [](CUdeviceptr, std::size_t) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  std::array<serve::MappedHandle, 2> handles{{{kPage, 0}, {kPage, 0}}};
  driver.fail_at(5, CUDA_ERROR_UNKNOWN);  // after two handles were created and mapped
  REQUIRE(mapper->create_at(mapper->home(0), handles) == CUDA_ERROR_UNKNOWN);
  REQUIRE(mapper->nanoseconds() > 0);
  REQUIRE(mapper->nanoseconds() <= serve::nanoseconds_since(begin));
}

TEST_CASE("an unmap that the driver refused is made up for, although the host had no memory then", "[serve][dynamic]") {
  FakeDriver driver(kPage);
  std::string why;
  const std::unique_ptr<serve::Mapper> mapper = serve::Mapper::create(driver, 0, 8 * kPage, 8 * kPage, &why);
  REQUIRE(mapper);
  std::array<serve::MappedHandle, 2> handles{{{kPage, 0}, {kPage, 0}}};
  REQUIRE(mapper->create_at(mapper->home(0), handles) == CUDA_SUCCESS);
  REQUIRE(mapper->map_at(mapper->view(0), handles) == CUDA_SUCCESS);
  driver.refuses_to_unmap = true;
  allocations_left = 1;
  REQUIRE_FALSE(mapper->unmap(mapper->view(0), handles));
  allocations_left = 0;
  REQUIRE_FALSE(mapper->is_vacant(mapper->view(kPage), kPage));
  driver.refuses_to_unmap = false;
  for (std::size_t i = 0; i < handles.size(); ++i) REQUIRE(mapper->destroy_at(mapper->home(i * kPage), handles[i]));
  REQUIRE(mapper->is_vacant(mapper->view(0), 2 * kPage));
  REQUIRE(driver.holds_no_memory());
}
