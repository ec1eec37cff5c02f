// SPDX-License-Identifier: Apache-2.0
#include "tests/replay/replay.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "interpose/stalloc.h"
#include "tests/replay/physical_check.h"
#include "tests/replay/turns.h"
#include "tests/replay/verifier.h"

namespace stalloc::replay {
namespace {

using trace::EventKind;

constexpr std::size_t kComplaintsKept = 10;

// The most that the library, if it is preloaded, has held. What a plan holds idle it calls free when it is asked.
std::uint64_t held_by_stalloc(std::uint32_t device) {
  const auto ask = reinterpret_cast<decltype(&stalloc_get_statistics)>(::dlsym(RTLD_DEFAULT, "stalloc_get_statistics"));
  stalloc_statistics statistics{};
  statistics.struct_bytes = sizeof statistics;
  return ask != nullptr && ask(static_cast<int>(device), &statistics) == 0 ? statistics.physical_peak : 0;
}

class Player {
 public:
  Player(const Api& api, const Schedule& schedule, const Options& options)
      : api_(api),
        schedule_(schedule),
        options_(options),
        verifier_(api, options.verify),
        physical_(api),
        addresses_(schedule.tensors.size()),
        pooled_(schedule.tensors.size()) {}

  // False: it failed, and result().error says how.
  bool prepare();
  bool play(const ScheduledCall& call);
  bool synchronize();
  bool finish();
  Result take() { return std::move(result_); }

 private:
  struct Device {
    std::vector<CUstream> streams;  // by ordinal
    CUevent order = nullptr;
    CUmemoryPool pool = nullptr;
    std::size_t free_at_start = 0;
    std::size_t least_free = 0;
  };

  bool expect(CUresult result, const char* what);
  bool expect(CUresult result, const char* what, const Tensor& tensor);
  bool use(std::uint32_t device);
  bool prepare_device(std::uint32_t ordinal);
  bool allocate(const ScheduledCall& call);
  bool release(const ScheduledCall& call);
  bool look_at_memory(Device& device);
  void complain(std::string line);

  const Api& api_;
  const Schedule& schedule_;
  const Options options_;
  Verifier verifier_;
  PhysicalCheck physical_;
  std::vector<Device> devices_;
  std::vector<CUdeviceptr> addresses_;  // by tensor; 0: not live
  std::vector<bool> pooled_;            // by tensor: stream-ordered
  std::uint64_t live_bytes_ = 0;
  std::uint64_t looked_at_ = 0;  // live bytes at the last look at free memory
  Result result_;
};

bool Player::expect(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) result_.error = fmt::format("{}: {}", what, api_.describe(result));
  return result == CUDA_SUCCESS;
}

bool Player::expect(CUresult result, const char* what, const Tensor& tensor) {
  if (result != CUDA_SUCCESS) {
    result_.error = fmt::format("{} of request {} ({} bytes, device {}, {} bytes live): {}", what, tensor.request,
                                tensor.bytes, tensor.device, live_bytes_, api_.describe(result));
  }
  return result == CUDA_SUCCESS;
}

void Player::complain(std::string line) {
  if (result_.complaints.size() < kComplaintsKept) result_.complaints.push_back(std::move(line));
}

// Another thread, or another device than the thread's last.
bool Player::use(std::uint32_t device) {
  thread_local std::uint32_t current = UINT32_MAX;
  if (current == device) return true;
  current = device;
  return expect(api_.use_device(static_cast<int>(device)), "choosing a device");
}

bool Player::prepare() {
  result_.skipped = schedule_.skipped;
  devices_.resize(schedule_.devices);
  for (std::uint32_t ordinal = 0; ordinal < schedule_.devices; ++ordinal) {
    if (!prepare_device(ordinal)) return false;
  }
  return true;
}

bool Player::prepare_device(std::uint32_t ordinal) {
  const Driver& driver = api_.driver();
  Device& device = devices_[ordinal];
  if (!use(ordinal)) return false;
  device.streams.assign(schedule_.streams, nullptr);
  const unsigned flags = options_.streams == Streams::Blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  for (std::size_t stream = 1; stream < device.streams.size() && options_.streams != Streams::Legacy; ++stream) {
    if (!expect(driver.cuStreamCreate(&device.streams[stream], flags), "creating a stream")) return false;
  }
  // As PyTorch's cudaMallocAsync backend sets it: the pool keeps what it has.
  cuuint64_t keep = UINT64_MAX;
  std::size_t total = 0;
  const auto device_ordinal = static_cast<CUdevice>(ordinal);
  const bool ready =
      expect(driver.cuEventCreate(&device.order, CU_EVENT_DISABLE_TIMING), "creating an event") &&
      expect(driver.cuDeviceGetDefaultMemPool(&device.pool, device_ordinal), "finding the default pool") &&
      expect(driver.cuMemPoolSetAttribute(device.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
             "setting up a pool") &&
      expect(driver.cuMemGetInfo(&device.free_at_start, &total), "asking for free memory");
  device.least_free = device.free_at_start;
  return ready;
}

bool Player::play(const ScheduledCall& call) {
  const bool is_free = call.kind == EventKind::Free || call.kind == EventKind::FreeAsync;
  return use(schedule_.tensors[call.tensor].device) && (is_free ? release(call) : allocate(call));
}

bool Player::allocate(const ScheduledCall& call) {
  const Tensor& tensor = schedule_.tensors[call.tensor];
  Device& device = devices_[tensor.device];
  const CUstream stream = device.streams[call.stream];
  CUdeviceptr& address = addresses_[call.tensor];
  CUresult result = CUDA_SUCCESS;
  if (call.kind == EventKind::Alloc) {
    result = api_.alloc(&address, tensor.bytes);
  } else if (call.kind == EventKind::AllocFromPool) {
    result = api_.alloc_from_pool(&address, tensor.bytes, device.pool, stream);
  } else {
    result = api_.alloc_async(&address, tensor.bytes, stream);
  }
  if (!expect(result, "allocation", tensor)) return false;
  pooled_[call.tensor] = call.kind != EventKind::Alloc;
  ++result_.requests;
  live_bytes_ += tensor.bytes;
  result_.peak_live_bytes = std::max(result_.peak_live_bytes, live_bytes_);
  if (physical_.available()) {
    if (const auto other = physical_.add(call.tensor, address, tensor.bytes)) {
      ++result_.overlaps;
      complain(fmt::format("request {} ({} bytes) shares memory with request {}", tensor.request, tensor.bytes,
                           schedule_.tensors[*other].request));
    }
  }
  if (live_bytes_ > looked_at_ + looked_at_ / 1024 && !look_at_memory(device)) return false;
  return expect(verifier_.write(call.tensor, address, tensor.bytes, stream), "filling", tensor);
}

// Work on the tensor ends with the check; a free on another stream is ordered behind it, as a sound program does.
bool Player::release(const ScheduledCall& call) {
  const Driver& driver = api_.driver();
  const Tensor& tensor = schedule_.tensors[call.tensor];
  Device& device = devices_[tensor.device];
  const CUstream used_on = device.streams[tensor.stream];
  const CUdeviceptr address = std::exchange(addresses_[call.tensor], 0);
  if (!expect(verifier_.check(call.tensor, address, tensor.bytes, used_on), "checking", tensor)) return false;
  if (options_.verify != Verify::Off) ++result_.verified;
  live_bytes_ -= tensor.bytes;
  physical_.remove(call.tensor);
  if (call.kind == EventKind::Free) {
    // CUDA waits for nothing when a pool's memory is freed so: the program had made sure that nothing uses it.
    const bool idle = tensor.plain || expect(driver.cuStreamSynchronize(used_on), "waiting for a stream", tensor);
    return idle && expect(api_.free(address), "free", tensor);
  }
  const CUstream freed_on = device.streams[call.stream];
  const bool ordered = freed_on == used_on ||
                       (expect(driver.cuEventRecord(device.order, used_on), "recording an event", tensor) &&
                        expect(driver.cuStreamWaitEvent(freed_on, device.order, 0), "waiting for an event", tensor));
  return ordered && expect(api_.free_async(address, freed_on), "free", tensor);
}

bool Player::look_at_memory(Device& device) {
  looked_at_ = live_bytes_;
  std::size_t free = 0;
  std::size_t total = 0;
  if (!expect(api_.driver().cuMemGetInfo(&free, &total), "asking for free memory")) return false;
  device.least_free = std::min(device.least_free, free);
  return true;
}

bool Player::synchronize() {
  for (std::uint32_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    if (!use(ordinal) || !expect(api_.driver().cuCtxSynchronize(), "waiting for a device")) return false;
  }
  return true;
}

// Checks what is still live, and waits for everything.
bool Player::finish() {
  for (std::size_t index = 0; index < addresses_.size(); ++index) {
    const Tensor& tensor = schedule_.tensors[index];
    if (addresses_[index] == 0) continue;
    const CUstream stream = devices_[tensor.device].streams[tensor.stream];
    if (!use(tensor.device)) return false;
    if (!expect(verifier_.check(index, addresses_[index], tensor.bytes, stream), "checking", tensor)) return false;
    if (options_.verify != Verify::Off) ++result_.verified;
  }
  for (std::uint32_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    Device& device = devices_[ordinal];
    if (!use(ordinal) || !look_at_memory(device)) return false;
    if (!expect(api_.driver().cuCtxSynchronize(), "waiting for a device")) return false;
    result_.physical_bytes +=
        std::max<std::uint64_t>(device.free_at_start - device.least_free, held_by_stalloc(ordinal));
  }
  result_.mismatches = verifier_.mismatched();
  for (const Mismatch& mismatch : verifier_.mismatches()) {
    const Tensor& tensor = schedule_.tensors[mismatch.tensor];
    complain(fmt::format("request {} ({} bytes) holds {:#x} instead of {:#x} at byte {}", tensor.request, tensor.bytes,
                         mismatch.found, mismatch.expected, mismatch.offset));
  }
  return true;
}

}  // namespace

Result replay(const Api& api, const Schedule& schedule, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  Player player(api, schedule, options);
  const auto play = [&](std::size_t index) {
    const bool waits =
        options.period != 0 && index >= options.first_wait && (index - options.first_wait) % options.period == 0;
    return player.play(schedule.calls[index]) && (!waits || player.synchronize());
  };
  bool ok = player.prepare();
  if (ok && options.threads) {
    std::vector<std::uint32_t> threads;
    for (const ScheduledCall& call : schedule.calls) threads.push_back(call.thread);
    ok = take_turns(threads, schedule.threads, play);
  } else {
    for (std::size_t index = 0; ok && index < schedule.calls.size(); ++index) ok = play(index);
  }
  if (ok) player.finish();
  Result result = player.take();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace stalloc::replay
