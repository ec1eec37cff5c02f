// SPDX-License-Identifier: Apache-2.0
// Shows which calls wait while the queue of a stream is full (docs/decisions/17-full-queues.md).
//
//   full_queue [CALL...]     default: all; prints a line for each call: whether it returned or waited. It fails if a
//                            call waited that does not without a library.
//
// Stream T is held by a host function, and a thread gives it work until there is no room, so that this thread waits
// inside CUDA. Then another thread makes the call; one that has not returned after some seconds waits for T. Each call
// is made in a process of its own, since calls that wait may hold others up. Stream S has nothing to do with T. A
// library that makes a call wait that returns without it would hang a program whose stream T waits for what follows
// that call.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr int kMost = 20'000;  // pieces of work, far more than a queue takes
constexpr std::size_t kSmall = 1 << 20;
constexpr std::size_t kBig = 64 << 20;
constexpr std::size_t kLarge = 5 * kBig;
constexpr std::size_t kProcesses = 8;  // at the same time
constexpr std::chrono::milliseconds kWhile = 500ms;
constexpr std::chrono::milliseconds kLongest = 4000ms;  // of a call that does not wait for T, on a busy machine
constexpr unsigned kLimitSeconds = 30;                  // for a process

std::atomic<bool> released{false};

void must(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::printf("a call returned %d\n", result);
  std::fflush(stdout);
  _exit(1);
}

void CUDA_CB hold(void* /*unused*/) {
  while (!released.load()) std::this_thread::sleep_for(1ms);
}
void CUDA_CB nothing(void* /*unused*/) {}

// What the calls are made with.
struct Objects {
  CUcontext context = nullptr;
  CUstream s = nullptr;
  CUstream t = nullptr;
  CUstream other = nullptr;     // idle, has freed memory
  CUstream blocking = nullptr;  // created without CU_STREAM_NON_BLOCKING
  CUdeviceptr of_other = 0;     // of the pool, where a row allocates it
  CUdeviceptr of_s = 0;         // of the pool, allocated and used on S
  CUdeviceptr of_t = 0;         // of the pool, allocated and used on T
  CUdeviceptr of_legacy = 0;    // of the pool, like the others
  CUdeviceptr of_blocking = 0;
  CUdeviceptr plain = 0;      // cuMemAlloc
  CUevent reached = nullptr;  // recorded on T before it was held
  CUevent pending = nullptr;  // recorded on T behind what holds it
  CUevent event = nullptr;    // never recorded
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp physical = {};
  CUmemAccessDesc access = {};
  CUdeviceptr mapped = 0;
  CUdeviceptr reserved = 0;
};

using Call = CUresult (*)(Objects&);

CUresult map_and_unmap(Objects& o) {
  must(cuMemMap(o.reserved, kSmall * 2, 0, o.handle, 0));
  must(cuMemSetAccess(o.reserved, kSmall * 2, &o.access, 1));
  return cuMemUnmap(o.reserved, kSmall * 2);
}
CUresult create_handle(Objects& o) {
  CUmemGenericAllocationHandle handle = 0;
  must(cuMemCreate(&handle, kSmall * 2, &o.physical, 0));
  return cuMemRelease(handle);
}
CUresult capture_state_of_t(Objects& o) {
  CUstreamCaptureStatus status = {};
  return cuStreamIsCapturing(o.t, &status);
}
CUresult id_of_t(Objects& o) {
  unsigned long long id = 0;
  return cuStreamGetId(o.t, &id);
}
CUresult context_of_t(Objects& o) {
  CUcontext context = nullptr;
  return cuStreamGetCtx(o.t, &context);
}
CUresult allocate(CUstream stream) {
  CUdeviceptr block = 0;
  return cuMemAllocAsync(&block, kBig, stream);
}
CUresult allocate_plain(Objects& /*o*/) {
  CUdeviceptr block = 0;
  return cuMemAlloc(&block, kBig);
}
CUresult memory_left(Objects& /*o*/) {
  std::size_t left = 0;
  std::size_t total = 0;
  return cuMemGetInfo(&left, &total);
}
CUresult create_stream(Objects& /*o*/) {
  CUstream stream = nullptr;
  return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
}
CUresult create_event(Objects& /*o*/) {
  CUevent event = nullptr;
  return cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
}
CUresult range_of_block(Objects& o) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  return cuMemGetAddressRange(&base, &size, o.of_t);
}
CUresult trim_pool(Objects& /*o*/) {
  CUmemoryPool pool = nullptr;
  must(cuDeviceGetDefaultMemPool(&pool, 0));
  return cuMemPoolTrimTo(pool, 0);
}
CUresult allocate_more(std::size_t bytes, CUstream stream) {  // than the pool has
  CUdeviceptr block = 0;
  const CUresult result = cuMemAllocAsync(&block, bytes, stream);
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}
// Another stream frees memory while it is held, and a request on T may get it.
CUresult hold_other(Objects& o) {
  must(cuMemAllocAsync(&o.of_other, kLarge, o.other));
  return cuLaunchHostFunc(o.other, hold, nullptr);
}
CUresult allocate_beside_request(Objects& o) {
  must(cuMemFreeAsync(o.of_other, o.other));
  std::thread([&o] {
    must(cuCtxSetCurrent(o.context));
    must(allocate_more(kLarge, o.t));
  }).detach();
  std::this_thread::sleep_for(kWhile / 4);
  return allocate(o.s);
}
std::size_t all_memory() {
  std::size_t left = 0;
  std::size_t total = 0;
  must(cuMemGetInfo(&left, &total));
  return total;
}
CUresult flags_of_t(Objects& o) {
  unsigned flags = 0;
  return cuStreamGetFlags(o.t, &flags);
}
CUresult reserve(Objects& /*o*/) {
  CUdeviceptr at = 0;
  must(cuMemAddressReserve(&at, kBig, 0, 0, 0));
  return cuMemAddressFree(at, kBig);
}
CUresult create_pool(Objects& /*o*/) {
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  must(cuMemPoolCreate(&pool, &properties));
  return cuMemPoolDestroy(pool);
}
CUresult set_threshold(Objects& /*o*/) {
  CUmemoryPool pool = nullptr;
  must(cuDeviceGetDefaultMemPool(&pool, 0));
  cuuint64_t bytes = kBig;
  return cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
}
CUresult begin_capture(CUstream stream) { return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }
CUresult capture_s(Objects& o) {
  must(begin_capture(o.s));
  return cuEventRecord(o.event, o.s);  // a stream that waits for it joins the capture
}
CUresult end_capture_of_s(Objects& o) {
  CUgraph graph = nullptr;
  return cuStreamEndCapture(o.s, &graph);
}
CUresult query(CUresult result) { return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result; }

// What a call does without a library on an H200 (driver 580).
enum Alone {
  kReturns,
  kWaits,
  kMayWait,  // it returns, but waits if the request has to wait for a free, which gives the legacy stream work
};

struct Row {
  std::string_view name;
  Alone alone;
  Call call;
  Call before = nullptr;  // made before T is held
};

const std::vector<Row> kCalls = {
    {"synchronize S", kReturns, [](Objects& o) { return cuStreamSynchronize(o.s); }},
    {"query S", kReturns, [](Objects& o) { return query(cuStreamQuery(o.s)); }},
    {"record an event on S", kReturns, [](Objects& o) { return cuEventRecord(o.event, o.s); }},
    {"memset on S", kReturns, [](Objects& o) { return cuMemsetD8Async(o.of_s, 1, kSmall, o.s); }},
    {"host function on S", kWaits, [](Objects& o) { return cuLaunchHostFunc(o.s, nothing, nullptr); }},
    {"let S wait for T's event", kReturns, [](Objects& o) { return cuStreamWaitEvent(o.s, o.pending, 0); }},
    {"allocate on S", kReturns, [](Objects& o) { return allocate(o.s); }},
    {"allocate 1 GiB on S", kReturns, [](Objects& o) { return allocate_more(std::size_t{1} << 30, o.s); }},
    {"allocate 1 GiB on T", kReturns, [](Objects& o) { return allocate_more(std::size_t{1} << 30, o.t); }},
    {"allocate more than there is on S", kReturns, [](Objects& o) { return allocate_more(all_memory(), o.s); }},
    {"flags of T", kReturns, flags_of_t},
    {"reserve addresses", kReturns, reserve},
    {"create and destroy a pool", kReturns, create_pool},
    {"set a pool's threshold", kReturns, set_threshold},
    {"free on S", kReturns, [](Objects& o) { return cuMemFreeAsync(o.of_s, o.s); }},
    {"free T's memory on S", kReturns, [](Objects& o) { return cuMemFreeAsync(o.of_t, o.s); }},
    {"destroy S", kWaits, [](Objects& o) { return cuStreamDestroy(o.s); }},
    {"destroy an idle stream", kWaits, [](Objects& o) { return cuStreamDestroy(o.other); }},
    {"query T", kWaits, [](Objects& o) { return query(cuStreamQuery(o.t)); }},
    {"capture state of T", kReturns, capture_state_of_t},
    {"id of T", kReturns, id_of_t},
    {"context of T", kReturns, context_of_t},
    {"query T's reached event", kReturns, [](Objects& o) { return cuEventQuery(o.reached); }},
    {"query T's pending event", kReturns, [](Objects& o) { return query(cuEventQuery(o.pending)); }},
    {"synchronize T's reached event", kReturns, [](Objects& o) { return cuEventSynchronize(o.reached); }},
    {"destroy T's pending event", kWaits, [](Objects& o) { return cuEventDestroy(o.pending); }},
    {"record T's pending event on S", kReturns, [](Objects& o) { return cuEventRecord(o.pending, o.s); }},
    {"allocate on S beside a request on T", kReturns, allocate_beside_request, hold_other},
    {"record an event on T", kWaits, [](Objects& o) { return cuEventRecord(o.event, o.t); }},
    {"allocate on T", kReturns, [](Objects& o) { return allocate(o.t); }},
    {"free on T", kWaits, [](Objects& o) { return cuMemFreeAsync(o.of_t, o.t); }},
    {"destroy T", kWaits, [](Objects& o) { return cuStreamDestroy(o.t); }},
    {"cuMemAlloc", kWaits, allocate_plain},
    {"cuMemFree", kWaits, [](Objects& o) { return cuMemFree(o.plain); }},
    {"cuMemFree of T's pool memory", kReturns, [](Objects& o) { return cuMemFree(o.of_t); }},
    {"cuMemGetInfo", kReturns, memory_left},
    {"cuMemGetAddressRange", kReturns, range_of_block},
    {"cuMemCreate, cuMemRelease", kReturns, create_handle},
    {"cuMemMap, cuMemSetAccess, cuMemUnmap", kReturns, map_and_unmap},
    {"cuMemUnmap", kReturns, [](Objects& o) { return cuMemUnmap(o.mapped, kSmall * 2); }},
    {"cuMemPoolTrimTo", kReturns, trim_pool},
    {"create a stream", kWaits, create_stream},
    {"create an event", kWaits, create_event},
    {"synchronize an idle stream", kReturns, [](Objects& o) { return cuStreamSynchronize(o.other); }},
    {"record an event on the legacy stream", kWaits,
     [](Objects& o) { return cuEventRecord(o.event, CU_STREAM_LEGACY); }},
    {"allocate on the legacy stream", kMayWait, [](Objects& /*o*/) { return allocate(CU_STREAM_LEGACY); }},
    {"free on the legacy stream", kWaits, [](Objects& o) { return cuMemFreeAsync(o.of_legacy, CU_STREAM_LEGACY); }},
    {"memset on the legacy stream", kWaits,
     [](Objects& o) { return cuMemsetD8Async(o.of_legacy, 1, kSmall, CU_STREAM_LEGACY); }},
    {"allocate on a blocking stream", kReturns, [](Objects& o) { return allocate(o.blocking); }},
    {"free on a blocking stream", kReturns, [](Objects& o) { return cuMemFreeAsync(o.of_blocking, o.blocking); }},
    {"memset on a blocking stream", kReturns,
     [](Objects& o) { return cuMemsetD8Async(o.of_blocking, 1, kSmall, o.blocking); }},
    {"record an event on a blocking stream", kReturns, [](Objects& o) { return cuEventRecord(o.event, o.blocking); }},
    {"begin a capture of S", kWaits, [](Objects& o) { return begin_capture(o.s); }},
    {"begin a capture of T", kWaits, [](Objects& o) { return begin_capture(o.t); }},
    {"begin a capture of a blocking stream", kWaits, [](Objects& o) { return begin_capture(o.blocking); }},
    {"memset on S under capture", kReturns, [](Objects& o) { return cuMemsetD8Async(o.of_s, 1, kSmall, o.s); },
     capture_s},
    {"end a capture of S", kReturns, end_capture_of_s, capture_s},
    {"let an idle stream join a capture", kReturns, [](Objects& o) { return cuStreamWaitEvent(o.other, o.event, 0); },
     capture_s},
    {"let T join a capture", kReturns, [](Objects& o) { return cuStreamWaitEvent(o.t, o.event, 0); }, capture_s},
    {"wait for an event beside a capture", kReturns,
     [](Objects& o) { return cuStreamWaitEvent(o.other, o.reached, 0); }, capture_s},
    {"destroy an idle event", kWaits, [](Objects& o) { return cuEventDestroy(o.reached); }},
    {"synchronize the context", kWaits, [](Objects& /*o*/) { return cuCtxSynchronize(); }},
};

void prepare_mappings(Objects& o) {
  o.physical.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  o.physical.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  o.access = {o.physical.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  must(cuMemCreate(&o.handle, kSmall * 2, &o.physical, 0));
  must(cuMemAddressReserve(&o.reserved, kSmall * 2, 0, 0, 0));
  must(cuMemAddressReserve(&o.mapped, kSmall * 2, 0, 0, 0));
  CUmemGenericAllocationHandle handle = 0;
  must(cuMemCreate(&handle, kSmall * 2, &o.physical, 0));
  must(cuMemMap(o.mapped, kSmall * 2, 0, handle, 0));
  must(cuMemSetAccess(o.mapped, kSmall * 2, &o.access, 1));
}

void prepare(Objects& o) {
  must(cuInit(0));
  must(cuDevicePrimaryCtxRetain(&o.context, 0));
  must(cuCtxSetCurrent(o.context));
  for (CUstream* stream : {&o.s, &o.t, &o.other}) must(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
  for (CUevent* event : {&o.reached, &o.pending, &o.event}) must(cuEventCreate(event, CU_EVENT_DISABLE_TIMING));
  must(cuMemAlloc(&o.plain, kBig));
  prepare_mappings(o);
  for (CUstream stream : {o.s, o.t, o.other}) {  // each stream has freed memory
    CUdeviceptr block = 0;
    must(cuMemAllocAsync(&block, kBig, stream));
    must(cuStreamSynchronize(stream));
    must(cuMemFreeAsync(block, stream));
  }
  must(cuMemAllocAsync(&o.of_s, kBig, o.s));
  must(cuMemAllocAsync(&o.of_t, kBig, o.t));
  must(cuStreamCreate(&o.blocking, CU_STREAM_DEFAULT));
  must(cuMemAllocAsync(&o.of_blocking, kBig, o.blocking));
  must(cuMemAllocAsync(&o.of_legacy, kBig, CU_STREAM_LEGACY));
  must(cuMemsetD8Async(o.of_s, 1, kSmall, o.s));
  must(cuMemsetD8Async(o.of_t, 1, kSmall, o.t));
  must(cuEventRecord(o.reached, o.t));
  must(cuCtxSynchronize());
}

int show(const Row& row) {
  Objects o;
  prepare(o);
  if (row.before != nullptr) must(row.before(o));
  must(cuLaunchHostFunc(o.t, hold, nullptr));
  CUdeviceptr freed_while_held = 0;
  must(cuMemAllocAsync(&freed_while_held, kBig, o.t));
  must(cuMemFreeAsync(freed_while_held, o.t));
  must(cuEventRecord(o.pending, o.t));
  std::atomic<int> given{0};
  std::thread filler([&] {
    must(cuCtxSetCurrent(o.context));
    while (given < kMost && !released && cuMemsetD8Async(o.of_t, 1, kSmall, o.t) == CUDA_SUCCESS) ++given;
  });
  for (int before = -1; before != given;) {
    before = given;
    std::this_thread::sleep_for(kWhile);
  }
  std::atomic<bool> returned{false};
  std::thread caller([&] {
    must(cuCtxSetCurrent(o.context));
    must(row.call(o));
    returned = true;
  });
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (!returned && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  const bool at_once = returned;
  released = true;
  filler.join();
  caller.join();
  const bool worse = !at_once && row.alone == kReturns;
  std::printf("%-40s %s%s\n", std::string(row.name).c_str(), at_once ? "returns" : "waits",
              worse ? ", unlike CUDA alone" : "");
  std::fflush(stdout);
  const bool full = given <= kMost / 2;
  _exit(full && !worse ? 0 : 1);
}

// A process for each name; the number of those that failed.
int show_all(const char* program, const std::vector<std::string>& names) {
  std::map<pid_t, std::string> running;
  int failed = 0;
  auto collect = [&] {
    int status = 0;
    const pid_t ended = wait(&status);
    if (status != 0) {
      ++failed;
      std::printf("%-40s %s\n", running[ended].c_str(), WIFSIGNALED(status) ? "never returned" : "failed");
      std::fflush(stdout);
    }
    running.erase(ended);
  };
  for (const std::string& name : names) {
    if (running.size() == kProcesses) collect();
    const pid_t child = fork();
    if (child == 0) {
      alarm(kLimitSeconds);  // SIGALRM ends it
      execl(program, program, "--call", name.c_str(), nullptr);
      _exit(1);
    }
    running[child] = name;
  }
  while (!running.empty()) collect();
  return failed;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> names(arguments + 1, arguments + count);
  if (names.size() == 2 && names[0] == "--call") {
    for (const Row& row : kCalls) {
      if (row.name == names[1]) return show(row);
    }
    std::fprintf(stderr, "full_queue: there is no call '%s'\n", names[1].c_str());
    return 1;
  }
  if (names.empty()) {
    for (const Row& row : kCalls) names.emplace_back(row.name);
  }
  return show_all("/proc/self/exe", names) == 0 ? 0 : 1;
}
