// SPDX-License-Identifier: Apache-2.0
// Eager tensors: their contents, the order between streams, threads, devices, and memory that is given back.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include "tests/torch/pytorch.h"

namespace stalloc::torch_test {
namespace {

std::size_t any_size(std::mt19937& random) {
  static constexpr std::size_t kSizes[] = {1, 300, 512, 5000, 200 << 10, kMiB, 3 * kMiB, 10 * kMiB, 24 * kMiB};
  return kSizes[random() % std::size(kSizes)] + random() % 700;
}

// A random program of one thread: tensors are made on several streams and used on others, and caches are emptied.
void run_program(unsigned seed, int steps, int device, std::size_t most_live) {
  MUST(cudaSetDevice(device));
  std::mt19937 random(seed);
  std::vector<Stream> streams{c10::cuda::getDefaultCUDAStream(static_cast<c10::DeviceIndex>(device))};
  for (int i = 0; i < 3; ++i) streams.push_back(make_stream(device));
  std::vector<Tensor> live;
  std::size_t bytes = 0;
  for (int step = 0; step < steps; ++step) {
    const On on(streams[random() % streams.size()]);
    const std::size_t size = any_size(random);
    if (bytes + size < most_live && random() % 5 < 3) {
      live.emplace_back(size);
      bytes += size;
    } else if (!live.empty()) {
      const std::size_t at = random() % live.size();
      if (random() % 3 == 0) live[at].use_on(streams[random() % streams.size()]);
      bytes -= live[at].bytes();
      if (at + 1 != live.size()) {
        Tensor gone = std::move(live[at]);
        live[at].~Tensor();
        new (&live[at]) Tensor(std::move(live.back()));
      }
      live.pop_back();
    }
    if (random() % 400 == 0) c10::cuda::CUDACachingAllocator::emptyCache();
    if (random() % 200 == 0) settle();
  }
}

}  // namespace

CHECK_OF_DOOR(random_program) {
  for (unsigned seed = 1; seed <= 4; ++seed) run_program(seed, 1500, 0, 300 * kMiB);
}

// Another thread has initialized the native allocator (`start`) while the door was put in front of it.
CHECK_OF_DOOR(initialized_without_the_door) {
  const Tensor tensor(kMiB);
  EXPECT(figures().allocated_bytes[0].current == static_cast<std::int64_t>(kMiB));
}

CHECK_OF_DOOR(random_threads) {
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) threads.emplace_back(run_program, 10 + thread, 700, 0, 120 * kMiB);
  for (std::thread& thread : threads) thread.join();
}

CHECK_OF_DOOR(two_devices) {
  std::thread second(run_program, 20, 600, 1, 200 * kMiB);
  run_program(21, 600, 0, 200 * kMiB);
  second.join();
  if (!is_door_open()) return;  // simcuda copies between devices only if it is told which ones
  MUST(cudaSetDevice(0));
  Tensor here(4 * kMiB);
  MUST(cudaSetDevice(1));
  Tensor there(4 * kMiB);
  EXPECT(there.pointer().device().index() == 1);
  settle();
  MUST(allocator().memcpyAsync(there.get(), 1, here.get(), 0, here.bytes(), there.stream(), false));
  MUST(cudaDeviceSynchronize());
  char byte = 0;
  char other = 1;
  MUST(cudaMemcpy(&other, there.get() + kMiB, 1, cudaMemcpyDeviceToHost));
  MUST(cudaSetDevice(0));
  MUST(cudaMemcpy(&byte, here.get() + kMiB, 1, cudaMemcpyDeviceToHost));
  EXPECT(byte == other);
  there.take();
  // A tensor of one device that a stream of the other device used.
  MUST(cudaSetDevice(0));
  std::optional<Tensor> shared(2 * kMiB);
  settle();
  allocator().recordStream(shared->pointer(), make_stream(1));
  shared.reset();
  MUST(cudaSetDevice(1));
  EXPECT(figures(0).allocated_bytes[0].current == static_cast<std::int64_t>(here.bytes()));
  MUST(cudaSetDevice(0));  // where `here` is read
}

// Freed memory that a stream still reads is not given to another tensor, and the host does not wait for that stream.
CHECK_OF_DOOR(record_stream) {
  const Stream main = make_stream();
  const Stream side = make_stream();
  for (int round = 0; round < 200; ++round) {
    const On on(main);
    std::vector<Tensor> tensors;
    for (int i = 0; i < 4; ++i) tensors.emplace_back(kMiB + static_cast<std::size_t>(i) * 300000);
    for (Tensor& tensor : tensors) tensor.use_on(side);
    for (Tensor& tensor : tensors) tensor.take();
    // These are written at once on the first stream, so they must not lie where the side stream still reads.
    std::vector<Tensor> next;
    for (int i = 0; i < 4; ++i) next.emplace_back(kMiB + static_cast<std::size_t>(i) * 300000);
  }
  settle();
}

// A free that waits for another stream delays no other free: the first stream ends its work while the other is still
// held.
CHECK_OF_DOOR(record_stream_does_not_stall) {
  const Stream main = make_stream();
  const Stream side = make_stream();
  const On on(main);
  std::optional<Tensor> tensor(std::in_place, 8 * kMiB);
  MUST(cudaStreamSynchronize(main.stream()));
  Gate gate(side.stream());
  allocator().recordStream(tensor->pointer(), side);
  tensor.reset();
  for (int i = 0; i < 10; ++i) Tensor(4 * kMiB + static_cast<std::size_t>(i) * 1000).check_on(main.stream());
  MUST(cudaStreamSynchronize(main.stream()));
  EXPECT(gate.open());
  settle();
  // The delayed memory serves the next requests.
  const std::int64_t held = figures().reserved_bytes[0].current;
  for (int i = 0; i < 4; ++i) Tensor(8 * kMiB).check_on(main.stream());
  EXPECT(figures().reserved_bytes[0].current <= held);
  settle();
}

// If memory is short, a request waits for the streams that still use freed memory, as with the native allocator.
CHECK_OF_DOOR(record_stream_where_memory_is_short) {
  const Stream side = make_stream();
  const Stream slow = make_stream();
  std::optional<Tensor> tensor(std::in_place, 1200 * kMiB);  // of 2 GiB
  std::vector<Tensor> others;
  for (int i = 0; i < 6; ++i) others.emplace_back(kMiB * 2);
  settle();
  Gate gate(side.stream());
  Gate slow_gate(slow.stream());
  for (const Tensor& other : others) allocator().recordStream(other.pointer(), slow);
  for (Tensor& other : others) other.take();
  allocator().recordStream(tensor->pointer(), side);
  tensor->take();
  std::thread device([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
    slow_gate.open();
  });
  Tensor again(1200 * kMiB);
  const Tensor more(kMiB);  // a large request that is freed at once is taken for a probe, and not planned
  device.join();
  settle();
}

// A stream of a device without tensors uses a tensor, whose memory must not be reused before.
CHECK_OF_DOOR(record_stream_of_a_device_without_tensors) {
  const On on(make_stream());
  std::optional<Tensor> tensor(8 * kMiB);
  const void* const at = tensor->get();
  settle();
  const Stream other = c10::cuda::getDefaultCUDAStream(1);
  MUST(cudaSetDevice(1));
  MUST(cudaFree(nullptr));
  Gate gate(other.stream());
  MUST(cudaSetDevice(0));
  allocator().recordStream(tensor->pointer(), other);
  tensor->take();
  std::vector<c10::DataPtr> next;
  for (int i = 0; i < 20; ++i) {
    next.push_back(allocator().allocate(8 * kMiB));
    EXPECT(next.back().get() != at);
  }
  EXPECT(gate.open());
}

// Frees a tensor that was at `at` and that work behind `gate` still uses, though its stream was destroyed. Nobody may
// have the memory before that work is done. Only with a driver older than CUDA 12.5 does the free wait for it.
void free_before_gate(std::optional<Tensor>& tensor, Gate& gate) {
  const char* const events = std::getenv("SIMCUDA_CONTEXT_EVENTS");
  const bool waits = is_door_open() && events != nullptr && std::string_view(events) == "0";
  const void* const at = tensor->get();
  std::thread device;
  if (waits) {
    device = std::thread([&gate] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.open();
    });
  }
  (void)tensor->take();
  if (waits) {
    EXPECT(!gate.open());  // it is open already
    device.join();
    return;
  }
  std::vector<c10::DataPtr> next;
  for (int i = 0; i < 20; ++i) {
    next.push_back(allocator().allocate(8 * kMiB));
    EXPECT(next.back().get() != at);
  }
  EXPECT(gate.open());
}

// The same for a stream, of any device, that was destroyed meanwhile.
CHECK_OF_DOOR(record_stream_of_a_destroyed_stream) {
  if (!is_door_open()) return;  // PyTorch alone reports an error when it frees such a tensor
  for (const int user : {1, 0}) {
    std::optional<Tensor> tensor(8 * kMiB);
    settle();
    MUST(cudaSetDevice(user));
    cudaStream_t raw = nullptr;
    MUST(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking));
    Gate gate(raw);
    allocator().recordStream(tensor->pointer(),
                             c10::cuda::getStreamFromExternal(raw, static_cast<c10::DeviceIndex>(user)));
    MUST(cudaStreamDestroy(raw));
    MUST(cudaSetDevice(0));
    free_before_gate(tensor, gate);
    settle();
  }
}

// PyTorch refuses an address at which no tensor begins, and whatever lies there stays.
CHECK_OF_DOOR(record_stream_of_an_unknown_address) {
  const Tensor tensor(kMiB);
  const c10::DataPtr inside(tensor.get() + 512, nullptr, tensor.pointer().get_deleter(), tensor.pointer().device());
  bool refused = false;
  try {
    allocator().recordStream(inside, make_stream());
  } catch (const c10::Error&) {
    refused = true;
  }
  EXPECT(refused);
}

// A tensor may outlive its stream, if the program has created that itself. Once the stream's work is done, its memory
// can be reused and given back.
CHECK_OF_DOOR(freed_after_its_stream) {
  for (int round = 0; round < 20; ++round) {
    cudaStream_t raw = nullptr;
    MUST(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking));
    std::optional<Tensor> tensor;
    {
      const On on(c10::cuda::getStreamFromExternal(raw, 0));
      tensor.emplace(200 * kMiB);
    }
    tensor->check_on(raw);
    settle();
    Gate gate(raw);
    MUST(cudaStreamDestroy(raw));
    free_before_gate(tensor, gate);
    settle();
    if (round % 2 == 0) native::emptyCache();
  }
  settle();
}

// Memory that is freed while the process or a thread ends. After PyTorch's thread-local variables were destroyed, its
// table of current streams is freed memory, which must not be read.
CHECK_OF_DOOR(freed_at_the_end) {
  static std::vector<c10::DataPtr> of_process;
  static std::vector<c10::DataPtr> of_thread;
  struct Frees {
    ~Frees() { of_thread.clear(); }
  };
  const auto use_streams = [] {
    for (int device = 0; device < 2; ++device) c10::cuda::setCurrentCUDAStream(make_stream(device));
  };
  use_streams();
  for (int device = 0; device < 2; ++device) {
    MUST(cudaSetDevice(device));
    for (std::size_t i = 0; i < 20; ++i) {
      of_process.push_back(allocator().allocate(kMiB + i * 1000));
      of_thread.push_back(allocator().allocate(kMiB + i * 1000));
    }
  }
  std::thread([&] {
    const thread_local Frees frees;  // destroyed behind what PyTorch makes later
    use_streams();
    static_cast<void>(allocator().allocate(kMiB));
  }).join();
  EXPECT(of_thread.empty());
}

// A tensor that another stream reads is freed while that stream is current, without recordStream. The native allocator
// reuses its memory only on the stream for which it was made, which is harmless if that stream is idle. So a third
// stream must not overwrite what the second one still reads.
CHECK_OF_DOOR(used_elsewhere_without_record_stream) {
  const Stream main = make_stream();
  const Stream reader = make_stream();
  const Stream writer = make_stream();
  for (int round = 0; round < 50; ++round) {
    const std::size_t bytes = (round % 2 == 0 ? 4 * kMiB : 100000) + static_cast<std::size_t>(round) * 1000;
    std::optional<Tensor> tensor;
    {
      const On on(main);
      tensor.emplace(bytes);
    }
    MUST(cudaStreamSynchronize(main.stream()));
    char written = 0;
    MUST(cudaMemcpy(&written, tensor->get(), 1, cudaMemcpyDeviceToHost));
    const On on(reader);
    const c10::DataPtr copy = allocator().allocate(bytes);
    auto* const read = static_cast<char*>(copy.get());
    Gate gate(reader.stream());
    MUST(cudaMemcpyAsync(read, tensor->get(), bytes, cudaMemcpyDeviceToDevice, reader.stream()));
    tensor->take();
    {
      const On on_writer(writer);
      Tensor next(bytes);
      gate.open();
      settle();
    }
    for (const std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1}) {
      char byte = 0;
      MUST(cudaMemcpy(&byte, read + at, 1, cudaMemcpyDeviceToHost));
      EXPECT(byte == written);
    }
  }
}

// Tensors may outlive their context, in which nothing is left of them.
CHECK_OF_DOOR(freed_after_a_reset) {
  if (!is_door_open()) return;  // PyTorch alone goes on using its segments
  Tensor tensor(8 * kMiB);
  Tensor used(kMiB);
  Tensor small(1000);
  const Stream side = make_stream();
  used.use_on(side);
  settle();
  MUST(cudaDeviceReset());
  allocator().recordStream(small.pointer(), side);
  EXPECT(allocator().getBaseAllocation(tensor.get(), nullptr) == tensor.get());
  void* other = nullptr;
  MUST(cudaMalloc(&other, 8 * kMiB));  // lies elsewhere
  for (Tensor* each : {&tensor, &used, &small}) {
    const auto begin = each->get();
    EXPECT(other < begin || other >= begin + each->bytes());
    each->take();
  }
  EXPECT(figures().allocated_bytes[0].current == 0);
}

// Freed memory is kept for later tensors until the cache is emptied. Synchronizing gives nothing back.
CHECK_OF_DOOR(idle_memory_is_kept) {
  { const Tensor tensor(100 * kMiB); }
  settle();
  const std::int64_t held = figures().reserved_bytes[0].current;
  EXPECT(held >= static_cast<std::int64_t>(100 * kMiB));
  { const Tensor tensor(100 * kMiB); }
  settle();
  EXPECT(figures().reserved_bytes[0].current == held);
}

// Emptying the cache waits for the device only where idle memory can be given back. A program may wait for a device
// that waits for later work of its own, as a collective of several devices does.
CHECK_OF_DOOR(emptying_an_empty_cache) {
  const Tensor large(40 * kMiB);
  const Tensor small(1000);
  MUST(cudaSetDevice(1));
  const c10::DataPtr other = allocator().allocate(40 * kMiB);
  MUST(cudaSetDevice(0));
  settle();
  native::emptyCache();
  for (const int device : {0, 1}) {
    const Stream busy = make_stream(device);
    MUST(cudaSetDevice(device));
    Gate gate(busy.stream());
    MUST(cudaSetDevice(0));
    native::emptyCache();
    EXPECT(gate.open());
  }
}

CHECK_OF_DOOR(foreign_thread_frees) {
  const Stream stream = make_stream();
  for (int round = 0; round < 20; ++round) {
    std::vector<c10::DataPtr> pointers;
    {
      const On on(stream);
      for (int i = 0; i < 20; ++i) {
        Tensor tensor(100000 * static_cast<std::size_t>(i + 1));
        tensor.check_on(stream.stream());
        pointers.push_back(tensor.take());
      }
      Tensor on_default(kMiB);
      pointers.push_back(on_default.take());
    }
    std::thread([&] { pointers.clear(); }).join();  // a thread without a context
    run_program(30 + static_cast<unsigned>(round), 30, 0, 60 * kMiB);
  }
}

CHECK_OF_DOOR(raw_and_base) {
  void* raw = allocator().raw_alloc(3000);
  void* other = allocator().raw_alloc_with_stream(5000, make_stream().stream());
  EXPECT(raw != nullptr && other != nullptr && raw != other);
  std::size_t bytes = 0;
  EXPECT(allocator().getBaseAllocation(raw, &bytes) != nullptr);
  EXPECT(bytes >= 3000);
  std::size_t largest = 0;
  allocator().cacheInfo(0, &largest);
  EXPECT(largest > kMiB);
  allocator().raw_delete(raw);
  allocator().raw_delete(other);
  EXPECT(allocator().raw_alloc(0) == nullptr);
  EXPECT(allocator().allocate(0).get() == nullptr);
  EXPECT(allocator().name() == "native");
  EXPECT(figures().allocated_bytes[0].current == 0);
  c10::DataPtr pointer = allocator().allocate(100);
  EXPECT(pointer.get_deleter() == allocator().raw_deleter());
  EXPECT(allocator().is_simple_data_ptr(pointer));
}

// A forked child frees the tensors that it inherited, and ends.
CHECK_OF_DOOR(fork_child) {
  Tensor tensor(kMiB);
  settle();
  const pid_t child = fork();
  if (child == 0) {
    allocator().raw_delete(tensor.pointer().get());
    std::_Exit(0);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

}  // namespace stalloc::torch_test
