// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_fence.h"

#include <array>
#include <thread>
#include <vector>

#include "catch.h"
#include "fake_driver.h"

using namespace stalloc::test;
using stalloc::serve::FreeFence;

TEST_CASE("frees on a full device wait with the spare block, repeatedly", "[serve][fence]") {
  FakeDriver driver;
  FreeFence fence(driver, FakeDriver::context());
  REQUIRE(fence.prepare());
  driver.most_plain_blocks = 1;  // the spare block
  for (int i = 0; i < 3; ++i) CHECK(fence.wait() == CUDA_SUCCESS);
}

TEST_CASE("a fence is prepared while a thread uses its spare block", "[serve][fence]") {
  FakeDriver driver;
  FreeFence fence(driver, FakeDriver::context());
  REQUIRE(fence.prepare());
  driver.most_plain_blocks = 1;  // the spare block
  int prepared = 0;
  driver.while_synchronizing = [&] { prepared += fence.prepare() ? 1 : 0; };
  REQUIRE(fence.wait() == CUDA_SUCCESS);
  REQUIRE(prepared == 1);
}

TEST_CASE("threads take turns with the spare block", "[serve][fence]") {
  FakeDriver driver;
  FreeFence fence(driver, FakeDriver::context());
  REQUIRE(fence.prepare());
  driver.most_plain_blocks = 1;  // the spare block
  std::array<int, 4> failures{};
  std::vector<std::thread> threads;
  for (int& failed : failures) {
    threads.emplace_back([&fence, &failed] {
      for (int i = 0; i < 200; ++i) failed += fence.wait() == CUDA_SUCCESS ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int failed : failures) CHECK(failed == 0);
}

TEST_CASE("waits that CUDA refuses keep no more blocks than they need", "[serve][fence]") {
  FakeDriver driver;
  FreeFence fence(driver, FakeDriver::context());
  REQUIRE(fence.prepare());
  driver.captures_globally = true;
  for (int i = 0; i < 10; ++i) REQUIRE(fence.wait() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  driver.captures_globally = false;
  driver.most_plain_blocks = 3;
  CUdeviceptr other = 0;
  REQUIRE(driver.allocate_plain(&other, 512) == CUDA_SUCCESS);
  REQUIRE(fence.wait() == CUDA_SUCCESS);
  fence.close(true);
  REQUIRE(driver.free_plain(other) == CUDA_SUCCESS);
  REQUIRE(driver.is_clean());
}
