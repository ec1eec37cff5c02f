// SPDX-License-Identifier: Apache-2.0
// Look-ups of the driver's functions by cuGetProcAddress.
#include <cuda.h>

#include <string>

#include "catch.h"
#include "machine.h"

using namespace stalloc;
using namespace stalloc::hooks;
using namespace stalloc::test;

namespace {

// What the driver answers.
void* answer;
CUresult result;

CUresult answer_first(const char* /*name*/, void** address, int /*version*/, cuuint64_t /*flags*/) {
  if (address != nullptr) *address = answer;
  return result;
}
CUresult answer_second(const char* /*name*/, void** address, int /*version*/, cuuint64_t /*flags*/,
                       CUdriverProcAddressQueryResult* /*status*/) {
  if (address != nullptr) *address = answer;
  return result;
}

// By either version of the function.
void* look_up(const char* name, void* driver_answer, CUresult driver_result = CUDA_SUCCESS) {
  answer = driver_answer;
  result = driver_result;
  Behind first(Hook::cuGetProcAddress, &answer_first);
  Behind second(Hook::cuGetProcAddress_v2, &answer_second);
  void* found = nullptr;
  void* found_too = nullptr;
  CUdriverProcAddressQueryResult status{};
  CHECK(lookup::get_proc_address(first.call(), name, &found, 12000, 0) == driver_result);
  CHECK(lookup::get_proc_address_v2(second.call(), name, &found_too, 12000, 0, &status) == driver_result);
  CHECK(found == found_too);
  return found;
}

void* own(const char* symbol) { return find_function(symbol); }

}  // namespace

TEST_CASE("a function that is hooked is found as its hook, in the form that the driver picked", "[hooks][lookup]") {
  const Machine machine;
  CHECK(look_up("cuMemAllocAsync", own("cuMemAllocAsync")) == replacement_of(Hook::cuMemAllocAsync));
  CHECK(look_up("cuMemAllocAsync", own("cuMemAllocAsync_ptsz")) == replacement_of(Hook::cuMemAllocAsync_ptsz));
  CHECK(look_up("cuMemAlloc", own("cuMemAlloc_v2")) == replacement_of(Hook::cuMemAlloc_v2));
  CHECK(look_up("cuGetProcAddress", own("cuGetProcAddress_v2")) == replacement_of(Hook::cuGetProcAddress_v2));
}

TEST_CASE("what is found is the original behind the hook from then on", "[hooks][lookup]") {
  const Machine machine;
  look_up("cuMemFree", own("cuMemFree_v2"));
  CHECK(original_of(Hook::cuMemFree_v2).find(nullptr) == own("cuMemFree_v2"));
}

TEST_CASE("a function that is not hooked is found as it is", "[hooks][lookup]") {
  const Machine machine;
  CHECK(look_up("cuDeviceGet", own("cuDeviceGet")) == own("cuDeviceGet"));
  CHECK_FALSE(machine.captures.may_be_active());
}

TEST_CASE("a later form of a hooked function is found as it is, and may capture unseen", "[hooks][lookup]") {
  const Machine machine;
  void* const later = reinterpret_cast<void*>(&answer_first);  // none of the exported functions
  CHECK(look_up("cuMemAllocAsync", later) == later);
  CHECK_FALSE(machine.captures.may_be_active());
  CHECK(look_up("cuStreamBeginCapture", later) == later);
  CHECK(machine.captures.may_be_active());
}

TEST_CASE("a function that the driver does not find is not found", "[hooks][lookup]") {
  const Machine machine;
  CHECK(look_up("cuMemAllocAsync", nullptr, CUDA_ERROR_NOT_FOUND) == nullptr);
  CHECK(look_up("cuMemAllocAsync", own("cuMemAllocAsync"), CUDA_ERROR_NOT_FOUND) == own("cuMemAllocAsync"));
  CHECK(look_up(nullptr, own("cuMemAllocAsync")) == own("cuMemAllocAsync"));
  answer = nullptr;
  result = CUDA_ERROR_INVALID_VALUE;
  Behind first(Hook::cuGetProcAddress, &answer_first);
  CHECK(lookup::get_proc_address(first.call(), "cuMemAlloc", nullptr, 12000, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a session that is off hooks nothing", "[hooks][lookup]") {
  const Machine machine(settings({{"STALLOC_MODE", "off"}}));
  CHECK(look_up("cuMemAllocAsync", own("cuMemAllocAsync")) == own("cuMemAllocAsync"));
}
