// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/events.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "tests/e2e/communication.h"

// Newer headers declare only later versions.
extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);

namespace stalloc::e2e {
namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "host: %s\n", what);
  std::exit(4);
}

void print_error(const char* what, cudaError_t error) { std::printf("%s: %s\n", what, cudaGetErrorName(error)); }
void print_error(const char* what, CUresult error) { print_error(what, static_cast<cudaError_t>(error)); }

StepChange evaluate(Host&, Training& training) {
  training.evaluate();
  return {};
}

// A graph that allocates, fills and frees is captured, then launched twice.
StepChange capture(Host&, Training&) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  void* memory = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  must(cudaMallocAsync(&memory, 5 * kMiB, stream), "cudaMallocAsync in a capture");
  must(cudaMemsetAsync(memory, 0x5b, 5 * kMiB, stream), "cudaMemsetAsync in a capture");
  must(cudaFreeAsync(memory, stream), "cudaFreeAsync in a capture");
  must(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  must(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < 2; ++i) must(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  must(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  must(cudaGraphDestroy(graph), "cudaGraphDestroy");
  must(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return {};
}

// Another thread allocates and frees on its own stream while this one captures. Neither may make the other's calls
// fail. During a global capture CUDA itself refuses such requests.
StepChange capture_beside(Host& host, Training&) {
  cudaStream_t capturing = nullptr;
  cudaStream_t other = nullptr;
  cudaGraph_t graph = nullptr;
  must(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking), "cudaStreamCreate");
  must(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreate");
  must(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  std::thread([&] {
    std::vector<Host::Id> tensors;
    for (std::size_t i = 1; i < 20; ++i) tensors.push_back(host.allocate(i * kMiB / 3, other));
    for (const Host::Id tensor : tensors) host.free(tensor);
  }).join();
  must(cudaStreamEndCapture(capturing, &graph), "cudaStreamEndCapture");
  must(cudaGraphDestroy(graph), "cudaGraphDestroy");
  must(cudaStreamDestroy(capturing), "cudaStreamDestroy");
  must(cudaStreamSynchronize(other), "cudaStreamSynchronize");
  must(cudaStreamDestroy(other), "cudaStreamDestroy");
  return {};
}

// Streams are destroyed with work and frees pending, and new ones take their place.
StepChange destroy_streams(Host& host, Training&) {
  for (std::size_t round = 0; round < 4; ++round) {
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    std::vector<Host::Id> tensors;
    for (std::size_t i = 1; i < 12; ++i) tensors.push_back(host.allocate(i * kMiB, stream));
    for (const Host::Id tensor : tensors) host.free(tensor);
    must(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
  return {};
}

StepChange misuse(Host& host, Training& training) {
  const Host::Id tensor = host.allocate(3 * kMiB, training.main_stream());
  void* const address = host.address(tensor);
  host.free(tensor);
  print_error("freed twice", cudaFreeAsync(address, training.main_stream()));
  print_error("freed twice, synchronously", cudaFree(address));
  const Host::Id whole = host.allocate(3 * kMiB, training.main_stream());
  print_error("freed from the middle", cudaFree(static_cast<char*>(host.address(whole)) + 512));
  host.free(whole);
  int on_stack = 0;
  print_error("memory of the host", cudaFree(&on_stack));
  print_error("no such address", cudaFreeAsync(reinterpret_cast<void*>(0x7654321000), nullptr));
  print_error("null", cudaFree(nullptr));
  print_error("remembered", cudaGetLastError());
  return {};
}

StepChange out_of_memory(Host&, Training& training) {
  void* memory = nullptr;
  print_error("too much", cudaMallocAsync(&memory, std::size_t{1} << 50, training.main_stream()));
  print_error("too much, synchronously", cudaMalloc(&memory, std::size_t{1} << 50));
  require(memory == nullptr, "a failed allocation returned memory");
  print_error("remembered", cudaGetLastError());
  return {};
}

// Asks for blocks until there is no more memory, frees all of them, and asks once more.
StepChange exhaustion(Host&, Training& training) {
  constexpr std::size_t kBlock = 64 << 20;
  std::size_t free = 0;
  std::size_t total = 0;
  require(cudaMemGetInfo(&free, &total) == cudaSuccess, "the device does not say what is free");
  std::vector<void*> blocks;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && blocks.size() <= total / kBlock) {
    void* block = nullptr;
    error = cudaMallocAsync(&block, kBlock, training.main_stream());
    if (error == cudaSuccess) blocks.push_back(block);
  }
  print_error("no more", error);
  print_error("remembered", cudaGetLastError());
  require(blocks.size() + 2 >= free / kBlock, "less was to be had than was free");
  for (void* block : blocks) require(cudaFreeAsync(block, training.main_stream()) == cudaSuccess, "a free failed");
  void* block = nullptr;
  print_error("once more", cudaMallocAsync(&block, kBlock, training.main_stream()));
  print_error("freed", cudaFreeAsync(block, training.main_stream()));
  return {};
}

// Children that only exit, become another program, or try in vain to use CUDA.
StepChange fork_children(Host&, Training&) {
  for (int kind = 0; kind < 3; ++kind) {
    const pid_t child = fork();
    require(child >= 0, "fork failed");
    if (child == 0) {
      void* memory = nullptr;
      if (kind == 0) std::exit(0);
      if (kind == 1) execl("/bin/true", "true", static_cast<char*>(nullptr));
      _exit(cudaMalloc(&memory, 512) == cudaErrorInitializationError ? 0 : 1);
    }
    int status = 0;
    require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child failed");
  }
  return {};
}

StepChange kill_self(Host& host, Training&) {
  host.check_all();
  kill(getpid(), SIGKILL);
  return {};
}

// The program closes every descriptor but standard input, standard output and the driver's own, and opens files of its
// own, theirs.0, theirs.1, ..., which get these numbers.
StepChange reuse_descriptors(Host&, Training&) {
  constexpr int kLargest = 256;
  for (int descriptor = STDERR_FILENO; descriptor < kLargest; ++descriptor) {
    std::array<char, 256> name{};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const bool open = readlink(link.c_str(), name.data(), name.size() - 1) > 0;
    if (open && std::string(name.data()).find("memfd:") == std::string::npos) close(descriptor);
  }
  for (int i = 0; i < 8; ++i) {
    const int file = ::open(("theirs." + std::to_string(i)).c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
    require(file >= 0 && write(file, "theirs", 6) == 6, "a file of the program's own");
  }
  return {};
}

// From now on no file may grow beyond 20 KB. By default a process that tries is killed.
StepChange limit_files(Host&, Training&) {
  const rlimit limit{20'000, RLIM_INFINITY};
  require(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit failed");
  return {};
}

// Exports memory to another process, also memory of a pool, for which that is refused.
StepChange share(Host& host, Training& training) {
  const Host::Id plain = host.allocate_sync(6 * kMiB);
  const Host::Id pooled = host.allocate(6 * kMiB, training.main_stream());
  cudaIpcMemHandle_t handle{};
  print_error("share cudaMalloc", cudaIpcGetMemHandle(&handle, host.address(plain)));
  print_error("share cudaMallocAsync", cudaIpcGetMemHandle(&handle, host.address(pooled)));
  cudaGetLastError();
  host.free_sync(plain);
  host.free(pooled);
  return {};
}

StepChange communicate(Host&, Training&) {
  std::printf("a communication library shares a buffer: %s\n", share_a_buffer(6 * kMiB));
  return {};
}

// Prints the answers of functions for memory that the program itself mapped. A library that registers a buffer asks for
// its range and its handle: both must be of the same memory, or there must be no handle.
void ask_as_mapped(const char* kind, CUdeviceptr at) {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  std::printf("--- %s\n", kind);
  print_error("address range", cuMemGetAddressRange(&base, &bytes, at + 700));
  std::printf("it is the allocation's: %s\n", base == at && bytes == 6 * kMiB ? "yes" : "no");
  print_error("handle", cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(at)));
  print_error("access set", cuMemSetAccess(at, 2 * kMiB, &access, 1));
  print_error("unmapped", cuMemUnmap(at, 2 * kMiB));
  print_error("addresses freed", cuMemAddressFree(at, 2 * kMiB));
}

// Asks about memory while it is live and after its free, and makes calls that must not end it.
StepChange ownership(Host& host, Training& training) {
  const Host::Id plain = host.allocate_sync(6 * kMiB);
  const Host::Id pooled = host.allocate(6 * kMiB, training.main_stream());
  const auto plain_at = reinterpret_cast<CUdeviceptr>(host.address(plain));
  const auto pooled_at = reinterpret_cast<CUdeviceptr>(host.address(pooled));
  ask_as_mapped("cudaMalloc", plain_at);
  ask_as_mapped("cudaMallocAsync", pooled_at);
  CUcontext current = nullptr;
  CUcontext context = nullptr;
  CUmemoryPool pool = nullptr;
  CUmemoryPool own_pool = nullptr;
  cuCtxGetCurrent(&current);
  cuDeviceGetDefaultMemPool(&own_pool, 0);
  print_error("its context", cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, plain_at + 700));
  print_error("its pool", cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled_at + 700));
  std::printf("they are right: %s\n", context == current && pool == own_pool ? "yes" : "no");
  print_error("the primary context destroyed", cuCtxDestroy(current));
  host.free_sync(plain);
  host.free(pooled);
  must(cudaStreamSynchronize(training.main_stream()), "cudaStreamSynchronize");
  for (const CUdeviceptr at : {plain_at, pooled_at}) {
    print_error("address range of freed memory", cuMemGetAddressRange(nullptr, nullptr, at));
  }
  print_error("attribute of it", cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain_at));
  void* none = nullptr;
  print_error("from no pool", cudaMallocFromPoolAsync(&none, 512, nullptr, training.main_stream()));
  cudaGetLastError();
  return {};
}

// A peer copies from this device's memory, some of it allocated before it had access, some after.
StepChange peer(Host& host, Training& training) {
  const Host::Id before = host.allocate(2 * kMiB, training.main_stream());
  cudaMemPool_t pool = nullptr;
  must(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  must(static_cast<cudaError_t>(cuMemPoolSetAccess(pool, &access, 1)), "cuMemPoolSetAccess");
  const Host::Id after = host.allocate(2 * kMiB, training.main_stream());
  must(cudaStreamSynchronize(training.main_stream()), "cudaStreamSynchronize");
  must(cudaSetDevice(1), "cudaSetDevice");
  must(cudaDeviceEnablePeerAccess(0, 0), "cudaDeviceEnablePeerAccess");
  void* here = nullptr;
  must(cudaMalloc(&here, 2 * kMiB), "cudaMalloc");
  for (const Host::Id tensor : {before, after}) {
    must(cudaMemcpyAsync(here, host.address(tensor), 2 * kMiB, cudaMemcpyDeviceToDevice, nullptr), "cudaMemcpyAsync");
    must(cudaDeviceSynchronize(), "a peer's copy");
  }
  must(cudaFree(here), "cudaFree");
  must(cudaSetDevice(0), "cudaSetDevice");
  host.free(before);
  host.free(after);
  return {};
}

// Allocates a tensor on the current device, whose memory must be of `device`.
void expect_on(int device, Host& host) {
  const Host::Id tensor = host.allocate(kMiB, nullptr);
  int owner = -1;
  must(static_cast<cudaError_t>(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                      reinterpret_cast<CUdeviceptr>(host.address(tensor)))),
       "cuPointerGetAttribute");
  require(owner == device, "memory of another device than the current one");
  host.free(tensor);
}

// The current device is changed by the runtime and by the driver, on old threads and new ones.
StepChange contexts(Host& host, Training&) {
  const auto set = [](CUcontext context) {
    must(static_cast<cudaError_t>(cuCtxSetCurrent(context)), "cuCtxSetCurrent");
  };
  for (const int device : {1, 0, 1, 1, 0}) {
    must(cudaSetDevice(device), "cudaSetDevice");
    for (int i = 0; i < 3; ++i) expect_on(device, host);
  }
  CUcontext second = nullptr;
  must(static_cast<cudaError_t>(cuDevicePrimaryCtxRetain(&second, 1)), "cuDevicePrimaryCtxRetain");
  set(second);
  expect_on(1, host);
  std::thread([&host] { expect_on(0, host); }).join();
  const Host::Id left = host.allocate(kMiB, nullptr);
  set(nullptr);
  expect_on(0, host);
  set(second);
  host.free(left);
  must(static_cast<cudaError_t>(cuDevicePrimaryCtxRelease(1)), "cuDevicePrimaryCtxRelease");
  must(cudaSetDevice(0), "cudaSetDevice");
  expect_on(0, host);
  return {};
}

// Memory in a context that the program made is left to the driver.
StepChange own_context(Host& host, Training&) {
  CUcontext own = nullptr;
  must(static_cast<cudaError_t>(cuCtxCreate_v2(&own, 0, 0)), "cuCtxCreate");  // which makes it current too
  for (int i = 0; i < 3; ++i) expect_on(0, host);
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  must(static_cast<cudaError_t>(cuCtxDestroy(own)), "cuCtxDestroy");
  must(cudaSetDevice(0), "cudaSetDevice");
  expect_on(0, host);
  return {};
}

// The pool's figures must be those of the live tensors.
StepChange pool_figures(Host& host, Training& training) {
  cudaMemPool_t pool = nullptr;
  cuuint64_t before = 0;
  cuuint64_t after = 0;
  cuuint64_t reserved = 0;
  must(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
  must(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &before), "cudaMemPoolGetAttribute");
  const Host::Id tensor = host.allocate(8 * kMiB, training.main_stream());
  must(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &after), "cudaMemPoolGetAttribute");
  must(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved), "cudaMemPoolGetAttribute");
  require(after == before + 8 * kMiB, "used bytes of the pool do not follow an allocation");
  require(reserved >= after, "a pool uses more than it has");
  host.free(tensor);
  must(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &after), "cudaMemPoolGetAttribute");
  require(after == before, "used bytes of the pool do not follow a free");
  return {};
}

StepChange nothing(Host&, Training&) { return {}; }
StepChange extra(Host&, Training&) { return {.extra_tensors = 15}; }
StepChange missing(Host&, Training&) { return {.skipped_layers = 2}; }
StepChange larger(Host&, Training&) { return {.size_factor = 1.37}; }
StepChange smaller(Host&, Training&) { return {.size_factor = 0.61}; }
StepChange late_frees(Host&, Training&) { return {.late_frees = true}; }
StepChange other_stream(Host&, Training&) { return {.other_stream = true}; }
StepChange sync_frees(Host&, Training&) { return {.sync_frees = true}; }

// Raises the signal that STALLOC_SIGNAL names. If the library did not handle it, it would end the process.
StepChange signal_self(Host&, Training&) {
  require(raise(SIGUSR2) == 0, "raise failed");
  return {};
}

struct Named {
  const char* name;
  StepChange (*happens)(Host&, Training&);
};

constexpr std::array kEvents{
    Named{"capture", capture},
    Named{"capture-beside", capture_beside},
    Named{"communicate", communicate},
    Named{"contexts", contexts},
    Named{"destroy-streams", destroy_streams},
    Named{"evaluate", evaluate},
    Named{"extra", extra},
    Named{"fork", fork_children},
    Named{"kill", kill_self},
    Named{"larger", larger},
    Named{"late-frees", late_frees},
    Named{"limit-files", limit_files},
    Named{"other-stream", other_stream},
    Named{"misuse", misuse},
    Named{"missing", missing},
    Named{"nothing", nothing},
    Named{"out-of-memory", out_of_memory},
    Named{"exhaustion", exhaustion},
    Named{"own-context", own_context},
    Named{"ownership", ownership},
    Named{"peer", peer},
    Named{"pool-figures", pool_figures},
    Named{"reuse-descriptors", reuse_descriptors},
    Named{"share", share},
    Named{"signal", signal_self},
    Named{"smaller", smaller},
    Named{"sync-frees", sync_frees},
};

}  // namespace

StepChange happen(const std::string& name, Host& host, Training& training) {
  for (const Named& event : kEvents) {
    if (name == event.name) return event.happens(host, training);
  }
  require(false, "no such event");
  return {};
}

std::vector<std::string> event_names() {
  std::vector<std::string> names;
  for (const Named& event : kEvents) names.emplace_back(event.name);
  return names;
}

}  // namespace stalloc::e2e
