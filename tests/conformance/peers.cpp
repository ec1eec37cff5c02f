// SPDX-License-Identifier: Apache-2.0
// A second device and the memory of pools: it may read and write what it was given access to.
#include <string>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

// Device 1's primary context, with a stream.
class Peer {
 public:
  explicit Peer(const Machine& machine) : machine_(machine) {
    machine.must(machine.cuda.cuDevicePrimaryCtxRetain(&context_, 1), "cuDevicePrimaryCtxRetain");
    enter();
    stream_ = machine.make_stream();
    machine.join();
  }
  ~Peer() {
    machine_.cuda.cuCtxSetCurrent(context_);
    machine_.cuda.cuStreamDestroy(stream_);
    machine_.join();
    machine_.cuda.cuDevicePrimaryCtxRelease(1);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void enter() const { machine_.must(machine_.cuda.cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }
  [[nodiscard]] CUstream stream() const { return stream_; }

  // Writes all of the memory from device 1 and reads it back there. Returns the answers to both, and whether the data
  // are right.
  std::string write(CUdeviceptr at, std::uint32_t pattern) const {
    enter();
    const Pinned host(machine_, kSomeBytes);
    Answers answers(machine_);
    const Driver& cuda = machine_.cuda;
    answers.add(cuda.cuMemsetD32Async(at, pattern, kSomeBytes / 4, stream_));
    answers.add(cuda.cuMemcpyDtoHAsync(host.data(), at, kSomeBytes, stream_));
    answers.add(cuda.cuStreamSynchronize(stream_));
    answers.add_word(holds(host.data(), kSomeBytes, pattern) ? "the data are right" : "the data are wrong");
    machine_.join();
    return answers.text();
  }

 private:
  const Machine& machine_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

bool can_access(const Machine& machine, Report& report) {
  int devices = 0;
  int can = 0;
  machine.must(machine.cuda.cuDeviceGetCount(&devices), "cuDeviceGetCount");
  if (devices > 1) machine.must(machine.cuda.cuDeviceCanAccessPeer(&can, 1, 0), "cuDeviceCanAccessPeer");
  report.fact("a second device that can reach the first one's memory", can != 0 ? "there" : "not there");
  return can != 0;
}

std::string access_of(const Machine& machine, CUmemoryPool pool, int device) {
  if (machine.cuda.cuMemPoolGetAccess == nullptr) return "not there";
  CUmemAccess_flags flags{};
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  const CUresult result = machine.cuda.cuMemPoolGetAccess(&flags, pool, &location);
  return result == CUDA_SUCCESS ? std::to_string(static_cast<int>(flags)) : machine.name(result);
}

void try_pool(const Machine& machine, Report& report, const Peer& peer, CUmemoryPool pool, const std::string& kind) {
  const Driver& cuda = machine.cuda;
  const CUstream stream = machine.make_stream();
  const auto allocate = [&] {
    CUdeviceptr at = 0;
    machine.must(cuda.cuMemAllocFromPoolAsync(&at, kSomeBytes, pool, stream), "cuMemAllocFromPoolAsync");
    machine.fill(at, kSomeBytes, pattern_of(1), stream);
    machine.wait(stream);
    return at;
  };
  const auto set = [&](int device, CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return machine.name(cuda.cuMemPoolSetAccess(pool, &access, 1));
  };
  const CUdeviceptr before = allocate();
  report.fact("the second device's access to " + kind + " at first", access_of(machine, pool, 1));
  report.fact("giving the second device access to " + kind, set(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  report.fact("the second device's access to " + kind + " then", access_of(machine, pool, 1));
  const CUdeviceptr after = allocate();
  report.fact("writing from the second device to memory of " + kind + " from before",
              peer.write(before, pattern_of(2)));
  report.fact("writing from the second device to memory of " + kind + " from after", peer.write(after, pattern_of(3)));
  machine.free(after, stream);
  machine.wait(stream);
  const CUdeviceptr again = allocate();
  report.fact("writing from the second device to memory of " + kind + " that was used again",
              peer.write(again, pattern_of(4)));
  // The same again from the second device: memory is requested and freed on its own stream.
  peer.enter();
  CUdeviceptr foreign = 0;
  const CUresult asked = cuda.cuMemAllocFromPoolAsync(&foreign, kSomeBytes, pool, peer.stream());
  report.fact("a request of the second device from " + kind, machine.name(asked));
  if (asked == CUDA_SUCCESS) {
    machine.wait(peer.stream());
    report.fact("writing from the second device to memory that it requested from " + kind,
                peer.write(foreign, pattern_of(5)));
    peer.enter();
    report.fact("its free", machine.name(cuda.cuMemFreeAsync(foreign, peer.stream())));
    machine.wait(peer.stream());
  }
  machine.join();
  report.fact("access of no such device to " + kind, set(77, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  report.fact("taking the pool's own device access to " + kind, set(0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  report.fact("taking the second device's access to " + kind, set(1, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  report.fact("the second device's access to " + kind + " in the end", access_of(machine, pool, 1));
  for (const CUdeviceptr at : {before, again}) machine.free(at, stream);
  machine.wait(stream);
  machine.destroy(stream);
}

// Access by cuCtxEnablePeerAccess to memory that cuMemAlloc gave before and after the call.
void try_plain(const Machine& machine, Report& report, const Peer& peer) {
  const Driver& cuda = machine.cuda;
  CUcontext own = nullptr;
  machine.must(cuda.cuCtxGetCurrent(&own), "cuCtxGetCurrent");
  const CUdeviceptr before = machine.allocate_plain(kSomeBytes);
  peer.enter();
  report.fact("peer access to the first device", machine.name(cuda.cuCtxEnablePeerAccess(own, 0)));
  report.fact("peer access to the first device once more", machine.name(cuda.cuCtxEnablePeerAccess(own, 0)));
  machine.join();
  const CUdeviceptr after = machine.allocate_plain(kSomeBytes);
  report.fact("writing from the second device to cuMemAlloc's memory from before", peer.write(before, pattern_of(6)));
  report.fact("writing from the second device to cuMemAlloc's memory from after", peer.write(after, pattern_of(7)));
  peer.enter();
  report.fact("no peer access any more", machine.name(cuda.cuCtxDisablePeerAccess(own)));
  report.fact("no peer access once more", machine.name(cuda.cuCtxDisablePeerAccess(own)));
  machine.join();
  machine.free_plain(before);
  machine.free_plain(after);
}

}  // namespace

void peers(Machine& machine, Report& report, std::uint64_t) {
  if (!can_access(machine, report)) return;
  const Peer peer(machine);
  const CUmemoryPool created = machine.make_pool();
  try_pool(machine, report, peer, created, "a created pool");
  machine.must(machine.cuda.cuMemPoolDestroy(created), "cuMemPoolDestroy");
  if (machine.cuda.cuDeviceSetMemPool != nullptr) {
    const CUmemoryPool current = machine.make_pool();
    machine.must(machine.cuda.cuDeviceSetMemPool(0, current), "cuDeviceSetMemPool");
    try_pool(machine, report, peer, current, "a created pool that is current");
    machine.must(machine.cuda.cuDeviceSetMemPool(0, machine.default_pool()), "cuDeviceSetMemPool");
    machine.must(machine.cuda.cuMemPoolDestroy(current), "cuMemPoolDestroy");
  }
  try_pool(machine, report, peer, machine.default_pool(), "the default pool");
  try_plain(machine, report, peer);
}

}  // namespace stalloc::conformance
