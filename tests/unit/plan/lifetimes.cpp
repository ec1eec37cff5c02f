// SPDX-License-Identifier: Apache-2.0
// Events become requests with lifetimes.
#include "plan/lifetimes.h"

#include "catch.h"
#include "samples.h"

using namespace stalloc;
using plan::kEveryStream;
using plan::kNever;
using plan::PassReason;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

std::vector<plan::Request> requests_of(test::TraceBuilder& calls) {
  auto lifetimes = plan::find_lifetimes(calls.trace());
  REQUIRE(lifetimes.devices.size() == 1);
  return lifetimes.devices[0].requests;
}

}  // namespace

TEST_CASE("allocations and frees are paired by address") {
  test::TraceBuilder calls;
  const auto a = calls.alloc(100);
  calls.stream = 2;
  const auto b = calls.alloc(200);
  calls.free(a);
  const auto c = calls.alloc_sync(300);
  calls.free_sync(c);
  calls.alloc(400);
  calls.free(b);
  const auto requests = requests_of(calls);
  REQUIRE(requests.size() == 4);
  CHECK(requests[0].until == 2);
  CHECK(requests[0].upper == 2);
  CHECK(requests[0].allocation_stream == 1);
  CHECK(requests[0].free_stream == 2);  // freed on another stream than it was made on
  CHECK(requests[1].until == 4);
  CHECK(requests[2].until == 3);
  CHECK(requests[2].allocation_stream == kEveryStream);
  CHECK(requests[2].free_stream == kEveryStream);
  CHECK(requests[3].until == kNever);
  CHECK(requests[3].upper == 4);
  for (const plan::Request& request : requests) CHECK(request.pass == PassReason::None);
}

TEST_CASE("each device has its own ordinals, and a free finds the device of its allocation") {
  test::TraceBuilder calls;
  calls.alloc(100);
  calls.device = 1;
  const auto b = calls.alloc(200);
  calls.device = 0;
  calls.alloc(300);
  calls.free(b);  // device 0 is current
  const auto lifetimes = plan::find_lifetimes(calls.trace());
  REQUIRE(lifetimes.devices.size() == 2);
  CHECK(lifetimes.devices[0].requests.size() == 2);
  REQUIRE(lifetimes.devices[1].requests.size() == 1);
  CHECK(lifetimes.devices[1].requests[0].id == 0);
  CHECK(lifetimes.devices[1].requests[0].until == 1);
}

TEST_CASE("what the plan must not serve is passed through and stays in the sequence") {
  test::TraceBuilder calls;
  calls.trace().modules = {{5, "/usr/lib/libnccl.so.2"}, {6, "/opt/libnccl/libother.so"}};
  calls.alloc(0);
  calls.fail(7777);  // takes nothing and has no place in the sequence
  calls.flags = static_cast<std::uint8_t>(tracefb::EventFlags::Captured);
  calls.alloc(1000);
  calls.flags = 0;
  const auto shared = calls.alloc(2000);
  calls.share(shared, 1999);
  const auto beside = calls.alloc(2000);
  calls.share(beside, 2000);  // the byte behind it belongs to nobody
  calls.module = 5;
  calls.alloc(3000);
  calls.module = 6;
  calls.alloc(3000);
  const auto requests = requests_of(calls);
  REQUIRE(requests.size() == 6);
  CHECK(requests[0].pass == PassReason::Empty);
  CHECK(requests[1].pass == PassReason::Captured);
  CHECK(requests[2].pass == PassReason::Exported);
  CHECK(requests[3].pass == PassReason::None);
  CHECK(requests[4].pass == PassReason::Communication);
  CHECK(requests[5].pass == PassReason::None);
  CHECK(requests[2].bytes() == 0);
}

TEST_CASE("a free recorded during capture makes its allocation the graph's") {
  test::TraceBuilder calls;
  const auto a = calls.alloc(1000);
  calls.flags = static_cast<std::uint8_t>(tracefb::EventFlags::Captured);
  calls.free(a);
  CHECK(requests_of(calls)[0].pass == PassReason::Captured);
}

TEST_CASE("probes of all free memory are kept out of the plan") {
  test::TraceBuilder calls(80 * kGiB);
  calls.alloc(2 * kGiB);
  calls.fail(78 * kGiB);
  calls.free(calls.alloc(39 * kGiB));
  const auto requests = requests_of(calls);
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].pass == PassReason::Probe);
}

TEST_CASE("an ordinary temporary is no probe") {
  test::TraceBuilder calls(80 * kGiB);
  calls.alloc(2 * kGiB);
  calls.free(calls.alloc(kGiB));      // not more than half of the rest
  calls.free(calls.alloc(3 * kGiB));  // large, but not for this device
  const auto large = calls.alloc(39 * kGiB);
  calls.alloc(512);
  calls.free(large);  // in use for a while
  for (const plan::Request& request : requests_of(calls)) CHECK(request.pass == PassReason::None);
}

TEST_CASE("a program of nothing but temporaries has no probes") {
  test::TraceBuilder calls(kGiB);
  for (int i = 0; i < 10; ++i) calls.free(calls.alloc(kGiB / 2));
  for (const plan::Request& request : requests_of(calls)) CHECK(request.pass == PassReason::None);
}

TEST_CASE("frees that do not match are counted and change nothing") {
  test::TraceBuilder calls;
  const auto a = calls.alloc(100);
  calls.free_address(0);
  calls.free_address(0xdead);
  calls.free(a);
  calls.free(a);
  const auto b = calls.alloc(100);
  const auto c = calls.alloc(100);
  calls.trace().events.pop_back();
  calls.move(c, calls.address(b));
  calls.add(trace::EventKind::AllocAsync, calls.address(b), 100);  // b was freed by a call nobody saw
  calls.free(c);
  const auto lifetimes = plan::find_lifetimes(calls.trace());
  CHECK(lifetimes.unknown_frees == 2);
  CHECK(lifetimes.lost_frees == 1);
  const auto& requests = lifetimes.devices[0].requests;
  REQUIRE(requests.size() == 3);
  CHECK(requests[1].until == 2);
  CHECK(requests[2].until == 3);
}
