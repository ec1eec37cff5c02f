// SPDX-License-Identifier: Apache-2.0
// Times pairs of an asynchronous allocation and its free, from several threads, each on a stream of its own.
//
//   pair_bench [--api driver|runtime] [--library FILE] [--bytes N] [--threads N] [--pairs N] [--batches N]
//
// It is not linked with CUDA but opens the driver or the runtime by name, so that the same binary runs alone, on the
// driver's pool, and under a preloaded allocator. Prints one line of JSON: nanoseconds for a pair, the median over all
// batches.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Settings {
  std::string api = "driver";
  std::string library;  // empty: the usual names
  std::size_t bytes = 1 << 20;
  int threads = 1;
  int pairs = 1000;  // in a batch
  int batches = 30;  // that are measured; two more come first
};

constexpr int kWarmUpBatches = 2;

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--api")
      settings.api = value;
    else if (name == "--library")
      settings.library = value;
    else if (name == "--bytes")
      settings.bytes = std::stoull(value);
    else if (name == "--threads")
      settings.threads = std::stoi(value);
    else if (name == "--pairs")
      settings.pairs = std::stoi(value);
    else if (name == "--batches")
      settings.batches = std::stoi(value);
    else
      throw std::invalid_argument("unknown option " + name);
  }
  if (argc % 2 == 0) throw std::invalid_argument("an option has no value");
  if (settings.threads < 1 || settings.pairs < 1 || settings.batches < 1)
    throw std::invalid_argument("a count below 1");
  return settings;
}

void check(int code, const char* what) {
  if (code != 0) throw std::runtime_error(std::string(what) + " returned " + std::to_string(code));
}

void* open_first(const std::string& given, std::vector<const char*> usual) {
  if (!given.empty()) usual = {given.c_str()};
  for (const char* name : usual) {
    if (void* library = dlopen(name, RTLD_NOW)) return library;
  }
  throw std::runtime_error(std::string("cannot open the library: ") + dlerror());
}

template <class Function>
Function* find(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(std::string("no ") + name);
  return reinterpret_cast<Function*>(symbol);
}

// The calls that are timed, through either API. Streams and addresses have the driver's types, which are also the
// runtime's.
struct Api {
  std::function<void()> enter;  // called once in each thread
  std::function<CUstream()> create_stream;
  int (*allocate)(CUdeviceptr*, std::size_t, CUstream);
  int (*free)(CUdeviceptr, CUstream);
  int (*synchronize)(CUstream);
};

// The driver's functions. The pool is set to keep its memory between batches, as PyTorch does.
Api driver_api(const Settings& settings) {
  void* library = open_first(settings.library, {"libcuda.so.1"});
  check(find<decltype(cuInit)>(library, "cuInit")(0), "cuInit");
  CUcontext context = nullptr;
  check(find<decltype(cuDevicePrimaryCtxRetain)>(library, "cuDevicePrimaryCtxRetain")(&context, 0), "primary context");
  CUmemoryPool pool = nullptr;
  check(find<decltype(cuDeviceGetDefaultMemPool)>(library, "cuDeviceGetDefaultMemPool")(&pool, 0), "default pool");
  std::uint64_t keep = UINT64_MAX;
  check(find<decltype(cuMemPoolSetAttribute)>(library, "cuMemPoolSetAttribute")(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                                                                &keep),
        "release threshold");
  auto* set_current = find<decltype(cuCtxSetCurrent)>(library, "cuCtxSetCurrent");
  auto* create = find<decltype(cuStreamCreate)>(library, "cuStreamCreate");
  return {[=] { check(set_current(context), "cuCtxSetCurrent"); },
          [=] {
            CUstream stream = nullptr;
            check(create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
            return stream;
          },
          find<int(CUdeviceptr*, std::size_t, CUstream)>(library, "cuMemAllocAsync"),
          find<int(CUdeviceptr, CUstream)>(library, "cuMemFreeAsync"),
          find<int(CUstream)>(library, "cuStreamSynchronize")};
}

Api runtime_api(const Settings& settings) {
  void* library = open_first(settings.library, {"libcudart.so", "libcudart.so.13", "libcudart.so.12"});
  constexpr int kReleaseThreshold = 4;  // cudaMemPoolAttrReleaseThreshold
  CUmemoryPool pool = nullptr;
  check(find<int(CUmemoryPool*, int)>(library, "cudaDeviceGetDefaultMemPool")(&pool, 0), "default pool");
  std::uint64_t keep = UINT64_MAX;
  check(find<int(CUmemoryPool, int, void*)>(library, "cudaMemPoolSetAttribute")(pool, kReleaseThreshold, &keep),
        "release threshold");
  auto* set_device = find<int(int)>(library, "cudaSetDevice");
  auto* create = find<int(CUstream*, unsigned int)>(library, "cudaStreamCreateWithFlags");
  return {[=] { check(set_device(0), "cudaSetDevice"); },
          [=] {
            CUstream stream = nullptr;
            check(create(&stream, /*cudaStreamNonBlocking=*/1), "cudaStreamCreateWithFlags");
            return stream;
          },
          find<int(CUdeviceptr*, std::size_t, CUstream)>(library, "cudaMallocAsync"),
          find<int(CUdeviceptr, CUstream)>(library, "cudaFreeAsync"),
          find<int(CUstream)>(library, "cudaStreamSynchronize")};
}

// Nanoseconds for a pair in one batch.
double time_batch(const Api& api, const Settings& settings, CUstream stream) {
  const auto started = std::chrono::steady_clock::now();
  for (int i = 0; i < settings.pairs; ++i) {
    CUdeviceptr address = 0;
    check(api.allocate(&address, settings.bytes, stream), "allocate");
    check(api.free(address, stream), "free");
  }
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - started;
  check(api.synchronize(stream), "synchronize");
  return spent.count() / settings.pairs;
}

std::vector<double> run_threads(const Api& api, const Settings& settings) {
  std::vector<std::vector<double>> results(settings.threads);
  std::barrier together(settings.threads);
  const auto body = [&](int index) {
    try {
      api.enter();
      const CUstream stream = api.create_stream();
      for (int batch = 0; batch < kWarmUpBatches + settings.batches; ++batch) {
        together.arrive_and_wait();
        const double nanoseconds = time_batch(api, settings, stream);
        if (batch >= kWarmUpBatches) results[index].push_back(nanoseconds);
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "pair_bench: %s\n", error.what());
      std::_Exit(1);  // the other threads wait at the barrier
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < settings.threads; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const std::vector<double>& one : results) all.insert(all.end(), one.begin(), one.end());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Settings settings = parse(argc, argv);
    const Api api = settings.api == "runtime" ? runtime_api(settings) : driver_api(settings);
    const std::vector<double> sorted = run_threads(api, settings);
    std::printf(
        "{\"api\": \"%s\", \"bytes\": %zu, \"threads\": %d, \"pairs\": %d, \"batches\": %d, "
        "\"median_ns\": %.1f, \"least_ns\": %.1f, \"most_ns\": %.1f}\n",
        settings.api.c_str(), settings.bytes, settings.threads, settings.pairs, settings.batches,
        sorted[sorted.size() / 2], sorted.front(), sorted.back());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pair_bench: %s\n", error.what());
    return 1;
  }
}
