// SPDX-License-Identifier: Apache-2.0
// The checks that the end-to-end tests rely on do fail when tensors are damaged.
#include <atomic>
#include <string>
#include <thread>

#include "catch.h"
#include "tests/replay/physical_check.h"
#include "tests/replay/turns.h"
#include "tests/replay/verifier.h"

using namespace stalloc::replay;

namespace {

constexpr CUdeviceptr kPage = 2 << 20;

const Api& api() {
  static const auto loaded = Api::load(Api::Road::Driver);
  REQUIRE(loaded.error == "");
  REQUIRE(loaded.value.use_device(0) == CUDA_SUCCESS);
  return loaded.value;
}

CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr at = 0;
  REQUIRE(api().alloc(&at, bytes) == CUDA_SUCCESS);
  return at;
}

// Tensors found wrong after `spoil`, of one with these bytes.
template <class Spoil>
std::uint64_t wrong_after(std::size_t bytes, Verify verify, Spoil spoil) {
  const CUdeviceptr at = allocate(bytes);
  Verifier verifier(api(), verify);
  REQUIRE(verifier.write(7, at, bytes, nullptr) == CUDA_SUCCESS);
  spoil(at);
  REQUIRE(verifier.check(7, at, bytes, nullptr) == CUDA_SUCCESS);
  REQUIRE(api().driver().cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(api().free(at) == CUDA_SUCCESS);
  return verifier.mismatched();
}

void set_byte(CUdeviceptr at) { REQUIRE(api().driver().cuMemsetD8Async(at, 0, 1, nullptr) == CUDA_SUCCESS); }

}  // namespace

TEST_CASE("untouched tensors of any size are right") {
  const auto verify = GENERATE(Verify::Stamps, Verify::Full);
  for (const std::size_t bytes : {1, 3, 4, 7, 511, 65'535, 65'536, 65'541, 3 << 20, (40 << 20) + 5}) {
    CAPTURE(bytes);
    CHECK(wrong_after(bytes, verify, [](CUdeviceptr) {}) == 0);
  }
}

TEST_CASE(
    "one wrong byte is found: anywhere in a small tensor, at a stamp of a large one, anywhere when all is checked") {
  for (const std::size_t bytes : {1, 6, 4096, 65'535}) {
    for (const std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1}) {
      CAPTURE(bytes, at);
      CHECK(wrong_after(bytes, Verify::Stamps, [&](CUdeviceptr base) { set_byte(base + at); }) == 1);
    }
  }
  constexpr std::size_t kLarge = 5 << 20;
  CHECK(wrong_after(kLarge, Verify::Stamps, [](CUdeviceptr base) { set_byte(base); }) == 1);
  CHECK(wrong_after(kLarge, Verify::Stamps, [](CUdeviceptr base) { set_byte(base + kLarge - 1); }) == 1);
  CHECK(wrong_after(kLarge, Verify::Stamps,
                    [](CUdeviceptr base) { set_byte((base + kPage) / kStampStride * kStampStride); }) == 1);
  CHECK(wrong_after(kLarge, Verify::Full, [](CUdeviceptr base) { set_byte(base + 1'234'567); }) == 1);
}

TEST_CASE("two tensors that share a stride of memory stamp a common word, wherever they begin") {
  const CUdeviceptr at = allocate(8 * kPage);
  for (const std::uint64_t shift : {512ULL, 70'000ULL / 512 * 512, 3ULL << 20}) {
    Verifier verifier(api(), Verify::Stamps);
    const std::uint64_t bytes = shift + kStampStride;  // the tensors share one stride
    REQUIRE(verifier.write(1, at, bytes, nullptr) == CUDA_SUCCESS);
    REQUIRE(verifier.write(2, at + shift, bytes, nullptr) == CUDA_SUCCESS);
    REQUIRE(verifier.check(1, at, bytes, nullptr) == CUDA_SUCCESS);
    REQUIRE(api().driver().cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(verifier.mismatched() > 0);
    CHECK(verifier.mismatches().front().tensor == 1);
  }
  REQUIRE(api().free(at) == CUDA_SUCCESS);
}

TEST_CASE("shared physical bytes are found, neighbors are not") {
  PhysicalCheck check(api());
  REQUIRE(check.available());
  const CUdeviceptr at = allocate(8 * kPage);
  CHECK_FALSE(check.add(1, at, 4096));
  CHECK_FALSE(check.add(2, at + 4096, 512));
  CHECK(check.add(3, at + 4095, 2).has_value());
  check.remove(3);
  check.remove(2);
  CHECK_FALSE(check.add(4, at + 4096, 4 * kPage));
  CHECK(check.add(5, at + kPage, 1).value_or(0) == 4);
  check.remove(5);
  check.remove(4);
  check.remove(1);
  CHECK_FALSE(check.add(6, at, 8 * kPage));
  REQUIRE(api().free(at) == CUDA_SUCCESS);
}

TEST_CASE("turns are taken in order, each by its own thread") {
  std::vector<std::uint32_t> threads;
  for (std::uint32_t i = 0; i < 300; ++i) threads.push_back(i * i % 3);
  std::vector<std::thread::id> ran;
  REQUIRE(take_turns(threads, 3, [&](std::size_t index) {
    CHECK(index == ran.size());
    ran.push_back(std::this_thread::get_id());
    return true;
  }));
  REQUIRE(ran.size() == threads.size());
  for (std::size_t i = 1; i < ran.size(); ++i) CHECK((ran[i] == ran[i - 1]) == (threads[i] == threads[i - 1]));
  std::size_t done = 0;
  CHECK_FALSE(take_turns(threads, 3, [&](std::size_t) { return ++done < 10; }));
  CHECK(done == 10);
}
