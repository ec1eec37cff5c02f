// SPDX-License-Identifier: Apache-2.0
// Small programs: `guests driver` calls the driver, `guests plugin FILE` loads and unloads a plugin (plugin.cpp) twice,
// `guests runtimes FILE FILE` makes a request by each of two runtimes that it opens, `guests look-up NAME` looks up a
// function of the driver and then orders two streams by events, and `guests streams`, `requests` and `later-requests`
// have streams that depend on each other by their host functions. Each prints what happens.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <thread>

namespace {

bool enter_context() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  return cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
         cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

// Host functions: one waits until the other was called, or for five seconds.
std::atomic<bool> is_open{false};
std::atomic<bool> is_late{false};
void wait_until_open(void*) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!is_open.load() && !is_late.load()) {
    is_late = std::chrono::steady_clock::now() > end;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}
void open(void*) { is_open = true; }

int say_whether_late(bool done) {
  std::puts(!done ? "failed" : is_late.load() ? "the streams waited for each other" : "went on");
  return 0;
}

// Two blocking streams, of which one waits until the other has come so far, beside a free on the legacy stream and a
// call that waits for a third stream, which has nothing to do.
int hold_streams() {
  CUstream first = nullptr;
  CUstream second = nullptr;
  CUstream idle = nullptr;
  CUdeviceptr at = 0;
  return say_whether_late(
      enter_context() && cuStreamCreate(&first, CU_STREAM_DEFAULT) == CUDA_SUCCESS &&
      cuStreamCreate(&second, CU_STREAM_DEFAULT) == CUDA_SUCCESS &&
      cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
      cuMemAllocAsync(&at, 16 << 20, CU_STREAM_LEGACY) == CUDA_SUCCESS &&
      cuMemFreeAsync(at, CU_STREAM_LEGACY) == CUDA_SUCCESS &&
      cuLaunchHostFunc(first, wait_until_open, nullptr) == CUDA_SUCCESS && cuStreamSynchronize(idle) == CUDA_SUCCESS &&
      cuMemAllocAsync(&at, 16 << 20, idle) == CUDA_SUCCESS && cuLaunchHostFunc(second, open, nullptr) == CUDA_SUCCESS &&
      cuStreamSynchronize(first) == CUDA_SUCCESS);
}

// A stream frees memory and then waits until another one, which requests as much, has come so far. `others_before`: the
// other stream has used memory before, so that there is an event at the free.
int hold_requests(bool others_before) {
  CUstream first = nullptr;
  CUstream second = nullptr;
  CUdeviceptr at = 0;
  CUdeviceptr other = 0;
  return say_whether_late(
      enter_context() && cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
      cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
      (!others_before || cuMemAllocAsync(&other, 2 << 20, second) == CUDA_SUCCESS) &&
      cuMemAllocAsync(&at, 16 << 20, first) == CUDA_SUCCESS && cuMemFreeAsync(at, first) == CUDA_SUCCESS &&
      cuLaunchHostFunc(first, wait_until_open, nullptr) == CUDA_SUCCESS &&
      cuMemAllocAsync(&at, 16 << 20, second) == CUDA_SUCCESS && cuMemsetD8Async(at, 1, 16, second) == CUDA_SUCCESS &&
      cuLaunchHostFunc(second, open, nullptr) == CUDA_SUCCESS && cuStreamSynchronize(first) == CUDA_SUCCESS);
}

// Looks up `name`, then lets a stream use memory that another one freed, after which the program's event orders it.
int look_up(const char* name) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return std::puts(dlerror()), 1;
  const bool is_found = dlsym(driver, name) != nullptr;
  const char* error = dlerror();
  std::printf("%s: %s\n", name, is_found ? "found" : error == nullptr ? "no error" : std::strstr(error, "undefined"));
  CUstream first = nullptr;
  CUstream second = nullptr;
  CUevent event = nullptr;
  CUdeviceptr other = 0;
  bool done = enter_context() && cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
              cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
              cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
              cuMemAllocAsync(&other, 2 << 20, second) == CUDA_SUCCESS;
  for (int i = 0; i < 4 && done; ++i) {
    CUdeviceptr at = 0;
    done = cuMemAllocAsync(&at, 16 << 20, first) == CUDA_SUCCESS && cuMemFreeAsync(at, first) == CUDA_SUCCESS &&
           cuEventRecord(event, first) == CUDA_SUCCESS && cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS &&
           cuMemAllocAsync(&at, 16 << 20, second) == CUDA_SUCCESS && cuMemFreeAsync(at, second) == CUDA_SUCCESS &&
           cuEventRecord(event, second) == CUDA_SUCCESS && cuStreamWaitEvent(first, event, 0) == CUDA_SUCCESS;
  }
  std::puts(done ? "ordered" : "failed");
  return done ? 0 : 1;
}

// Calls functions that it is linked with, and one that it finds.
int call_driver() {
  CUdeviceptr at = 0;
  CUdeviceptr ordered = 0;
  void* found = nullptr;
  const bool done =
      enter_context() && cuMemAlloc(&at, 1 << 20) == CUDA_SUCCESS && cuMemFree(at) == CUDA_SUCCESS &&
      cuGetProcAddress("cuMemFree", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr) == CUDA_SUCCESS &&
      cuMemAllocAsync(&ordered, 1 << 20, nullptr) == CUDA_SUCCESS &&
      reinterpret_cast<decltype(&cuMemFree)>(found)(ordered) == CUDA_SUCCESS;
  std::puts(done ? "allocated and freed" : "failed");
  return done ? 0 : 1;
}

int load_twice(const char* file) {
  for (int i = 0; i < 2; ++i) {
    void* plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) return std::puts(dlerror()), 1;
    const auto work = reinterpret_cast<int (*)()>(dlsym(plugin, "work"));
    std::printf("work: %d\n", work());
    dlclose(plugin);
  }
  std::puts("done");
  return 0;
}

int ask_runtimes(const char* first, const char* second) {
  for (const char* file : {first, second}) {
    void* runtime = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (runtime == nullptr) return std::puts(dlerror()), 1;
    const auto allocate = reinterpret_cast<int (*)(void**, std::size_t, void*)>(dlsym(runtime, "cudaMallocAsync"));
    void* at = nullptr;
    std::printf("request: %d\n", allocate(&at, 1 << 20, nullptr));
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count == 3 && std::strcmp(words[1], "plugin") == 0) return load_twice(words[2]);
  if (count == 3 && std::strcmp(words[1], "look-up") == 0) return look_up(words[2]);
  if (count == 4 && std::strcmp(words[1], "runtimes") == 0) return ask_runtimes(words[2], words[3]);
  const std::string_view what = count == 2 ? words[1] : "";
  if (what == "requests" || what == "later-requests") return hold_requests(what == "later-requests");
  return what == "streams" ? hold_streams() : call_driver();
}
