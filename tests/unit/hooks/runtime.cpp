// SPDX-License-Identifier: Apache-2.0
// When a call of a function of the CUDA runtime is answered without the runtime.
#include <cuda.h>

#include "catch.h"
#include "interpose/hooks/allocation.h"
#include "machine.h"
#include "tests/folder.h"

using namespace stalloc;
using namespace stalloc::hooks;
using namespace stalloc::test;

namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr RuntimeResult kRefused = 2;  // cudaErrorMemoryAllocation

// A runtime that counts calls.
int asked;
RuntimeResult runtime_result;
RuntimeResult answer_alloc(void** out, std::size_t /*bytes*/, CUstream /*stream*/) {
  ++asked;
  if (runtime_result == 0) *out = reinterpret_cast<void*>(0x1000);
  return runtime_result;
}
RuntimeResult answer_free(void* /*at*/, CUstream /*stream*/) { return ++asked, runtime_result; }
RuntimeResult answer_set_device(int /*device*/) { return 0; }

class Runtime {
 public:
  Runtime() {
    asked = 0;
    runtime_result = 0;
    set_device();
  }
  RuntimeResult alloc(void** out, std::size_t bytes = kMiB) {
    return runtime::alloc_async(alloc_.call(), out, bytes, nullptr, DefaultStream::Legacy);
  }
  RuntimeResult free(void* at) { return runtime::free_async(free_.call(), at, nullptr, DefaultStream::Legacy); }
  RuntimeResult set_device() { return runtime::set_device(set_device_.call(), 0); }
  // An allocation that the runtime answers, which knows the thread from then on.
  void settle() {
    void* at = nullptr;
    REQUIRE(alloc(&at) == 0);
    REQUIRE(at == reinterpret_cast<void*>(0x1000));
    asked = 0;
  }

 private:
  Behind<RuntimeResult(void**, std::size_t, CUstream)> alloc_{Hook::cudaMallocAsync, &answer_alloc};
  Behind<RuntimeResult(void*, CUstream)> free_{Hook::cudaFreeAsync, &answer_free};
  Behind<RuntimeResult(int)> set_device_{Hook::cudaSetDevice, &answer_set_device};
};

CUdeviceptr address(const void* at) { return reinterpret_cast<CUdeviceptr>(at); }

}  // namespace

TEST_CASE("the runtime answers a thread first, and is spared from then on", "[hooks][runtime]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  Runtime runtime;
  runtime.settle();
  void* at = nullptr;
  CHECK(runtime.alloc(&at) == 0);
  CHECK(asked == 0);
  CHECK(heap.owns(address(at)));
  CHECK(runtime.free(at) == 0);
  CHECK(asked == 0);
  CHECK(heap.statistics().live == 0);
}

TEST_CASE("the runtime is asked again when it may be about to change the context", "[hooks][runtime]") {
  const Machine machine;
  (void)machine.heap();
  Runtime runtime;
  runtime.settle();
  void* at = nullptr;
  SECTION("a device was chosen") { runtime.set_device(); }
  SECTION("another context is current") { REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS); }
  SECTION("it failed meanwhile") {
    runtime_result = kRefused;
    CHECK(runtime.alloc(&at, 0) == kRefused);
    runtime_result = 0;
    asked = 0;
  }
  CHECK(runtime.alloc(&at) == 0);
  CHECK(asked == 1);
}

TEST_CASE("requests that the runtime would not just forward are passed to it", "[hooks][runtime]") {
  const Machine machine;
  (void)machine.heap();
  Runtime runtime;
  runtime.settle();
  void* at = nullptr;
  SECTION("no bytes") { CHECK(runtime.alloc(&at, 0) == 0); }
  SECTION("no place for the answer") {
    runtime_result = kRefused;
    CHECK(runtime.alloc(nullptr) == kRefused);
  }
  SECTION("a free of what no heap owns") { CHECK(runtime.free(reinterpret_cast<void*>(0x2000)) == 0); }
  SECTION("a capture") {
    Session::captures().gate().capture_began();
    CHECK(runtime.alloc(&at) == 0);
    Session::captures().gate().capture_ended();
  }
  CHECK(asked == 1);
}

TEST_CASE("a broken context is the runtime's to report", "[hooks][runtime]") {
  static bool broken;
  broken = false;
  const Replaced ask(
      "cuCtxGetStreamPriorityRange", +[](int*, int*) { return broken ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS; });
  const Machine machine;
  (void)machine.heap();
  Runtime runtime;
  runtime.settle();
  broken = true;
  void* at = nullptr;
  CHECK(runtime.alloc(&at) == 0);
  CHECK(asked == 1);
}

TEST_CASE("every call of a run that is recorded goes through the runtime", "[hooks][runtime]") {
  const Folder folder;
  const Machine machine(settings({{"STALLOC_MODE", "trace"}, {"STALLOC_TRACE", folder / "trace.fb"}}));
  (void)machine.heap();
  Runtime runtime;
  runtime.settle();
  void* at = nullptr;
  CHECK(runtime.alloc(&at) == 0);
  CHECK(asked == 1);
}

TEST_CASE("a request that the heap declines goes to the runtime, and not to the heap again", "[hooks][runtime]") {
  static bool declined;
  const Machine machine;
  serve::Heap& heap = machine.heap();
  Runtime runtime;
  runtime.settle();
  heap.set_limit(0);
  Behind<RuntimeResult(void**, std::size_t, CUstream)> original(
      Hook::cudaMallocAsync, +[](void**, std::size_t, CUstream) -> RuntimeResult {
        declined = Declined::by_heap();
        return kRefused;
      });
  declined = false;
  void* at = nullptr;
  CHECK(runtime::alloc_async(original.call(), &at, 64 * kMiB, nullptr, DefaultStream::Legacy) == kRefused);
  CHECK(declined);
  CHECK_FALSE(Declined::by_heap());
}
