// SPDX-License-Identifier: Apache-2.0
// What mapping costs: microseconds to create, map, give access to and unmap a handle of 4 MiB, depending on how many
// handles exist, in which reservation of addresses they lie, and whether they are for GPUDirect RDMA or for sharing;
// whether parts of a handle can be mapped; and what a handle costs as programs make it: alone, after other work on the
// host, while the card works, at addresses and in memory that were not used before. Prints a table, and is not a test.
//
//     mapping_bench [most handles]
#include <cuda.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Handles = std::vector<CUmemGenericAllocationHandle>;

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kHandle = 4 * kMiB;
constexpr std::size_t kBatch = 64;  // handles created, mapped and given access to at once
constexpr std::size_t kBatchBytes = kBatch * kHandle;
constexpr std::size_t kBig = std::size_t{1} << 44;  // one reservation for everything, as the library makes it
constexpr std::size_t kTurns = 40;
constexpr std::array<std::size_t, 4> kHandlesThere{0, 4000, 8000, 14000};

struct Kind {
  const char* name;
  bool rdma;
  bool own;      // each batch has a reservation of its own
  bool shared;   // may be given to other processes, as a file descriptor
  bool at_once;  // all handles of a batch are unmapped by one call
};
constexpr std::array<Kind, 5> kKinds{{{"plain", false, false, false, false},
                                      {"unmapped at once", false, false, false, true},
                                      {"for RDMA", true, false, false, false},
                                      {"own addresses", false, true, false, false},
                                      {"for sharing", false, false, true, false}}};

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "mapping_bench: %s: error %d\n", what, static_cast<int>(result));
  std::exit(1);
}

double since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

constexpr CUmemLocation kDevice{CU_MEM_LOCATION_TYPE_DEVICE, {0}};

CUmemGenericAllocationHandle create(bool rdma = false, bool shared = false) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = kDevice;
  properties.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
  if (shared) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  check(cuMemCreate(&handle, kHandle, &properties, 0), "creating a handle");
  return handle;
}

void map(CUdeviceptr at, std::span<const CUmemGenericAllocationHandle> handles) {
  for (const CUmemGenericAllocationHandle handle : handles) {
    check(cuMemMap(at, kHandle, 0, handle, 0), "mapping");
    at += kHandle;
  }
}

void give_access(CUdeviceptr at, std::size_t bytes) {
  CUmemAccessDesc access{};
  access.location = kDevice;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(cuMemSetAccess(at, bytes, &access, 1), "giving access");
}

void unmap(CUdeviceptr at, std::size_t handles, bool at_once = false) {
  if (at_once) {
    check(cuMemUnmap(at, handles * kHandle), "unmapping at once");
    return;
  }
  for (std::size_t i = 0; i < handles; ++i) check(cuMemUnmap(at + i * kHandle, kHandle), "unmapping");
}

CUdeviceptr reserve(std::size_t bytes) {
  CUdeviceptr at = 0;
  check(cuMemAddressReserve(&at, bytes, 0, 0, 0), "reserving addresses");
  return at;
}

struct Costs {
  std::vector<double> create, map, access, unmap, release, reservation;  // for a handle; the last for a reservation
};

// Measures batches of handles of each kind in turn.
void print_batches(std::size_t there, CUdeviceptr big) {
  std::array<Costs, kKinds.size()> costs;
  Handles handles(kBatch);
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
      const std::size_t which = (i + turn) % kKinds.size();
      const Kind& kind = kKinds[which];
      Costs& cost = costs[which];
      auto begin = Clock::now();
      const CUdeviceptr at = kind.own ? reserve(kBatchBytes) : big + kBig / 2;
      double reservation = since(begin);
      begin = Clock::now();
      for (CUmemGenericAllocationHandle& handle : handles) handle = create(kind.rdma, kind.shared);
      cost.create.push_back(since(begin) / kBatch);
      begin = Clock::now();
      map(at, handles);
      cost.map.push_back(since(begin) / kBatch);
      begin = Clock::now();
      give_access(at, kBatchBytes);
      cost.access.push_back(since(begin) / kBatch);
      begin = Clock::now();
      unmap(at, kBatch, kind.at_once);
      cost.unmap.push_back(since(begin) / kBatch);
      begin = Clock::now();
      for (const CUmemGenericAllocationHandle handle : handles) check(cuMemRelease(handle), "releasing");
      cost.release.push_back(since(begin) / kBatch);
      begin = Clock::now();
      if (kind.own) check(cuMemAddressFree(at, kBatchBytes), "giving addresses back");
      reservation += since(begin);
      cost.reservation.push_back(reservation);
    }
  }
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    const Costs& cost = costs[i];
    std::printf("%5zu there, %-16s create %.1f map %.2f access %.1f unmap %.1f release %.1f, reserve+free %.1f us\n",
                there, kKinds[i].name, median(cost.create), median(cost.map), median(cost.access), median(cost.unmap),
                median(cost.release), median(cost.reservation));
  }
}

// Measures mapping handles a second time.
void print_view(const Handles& old, CUdeviceptr big) {
  Handles handles(kBatch);
  for (std::size_t i = 0; i < kBatch; ++i) handles[i] = old[i * 53 % old.size()];
  std::array<std::vector<double>, 2> costs;
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    for (const std::size_t own : {0, 1}) {
      const auto begin = Clock::now();
      const CUdeviceptr at = own != 0 ? reserve(kBatchBytes) : big + kBig / 2;
      map(at, handles);
      give_access(at, kBatchBytes);
      costs[own].push_back(since(begin) / kBatch);
      unmap(at, kBatch);
      if (own != 0) check(cuMemAddressFree(at, kBatchBytes), "giving addresses back");
    }
  }
  std::printf("      a view: in the big one %.1f, its own %.1f us a handle\n", median(costs[0]), median(costs[1]));
}

// How a program makes handles.
struct Habit {
  const char* name;
  std::size_t at_once;  // handles that are created, mapped and given access to before the host does something else
  std::size_t touched;  // bytes that the host writes in between, which replace what the processor's caches hold
  double idle_us;       // or the time in which it does nothing in between
  bool working;         // the card has work to do
  bool fresh;           // at other addresses each time, and nothing is given back in between
};
constexpr std::array<Habit, 12> kHabits{{{"64 at once", 64, 0, 0, false, false},
                                         {"one by one", 1, 0, 0, false, false},
                                         {"behind 1 ms of nothing", 1, 0, 1000, false, false},
                                         {"behind 10 ms of nothing", 1, 0, 10'000, false, false},
                                         {"behind 2 MiB written", 1, 2 * kMiB, 0, false, false},
                                         {"behind 16 MiB written", 1, 16 * kMiB, 0, false, false},
                                         {"behind 64 MiB written", 1, 64 * kMiB, 0, false, false},
                                         {"the same, 8 at once", 8, 64 * kMiB, 0, false, false},
                                         {"the same, 64 at once", 64, 64 * kMiB, 0, false, false},
                                         {"card working", 1, 0, 0, true, false},
                                         {"fresh addresses", 1, 0, 0, false, true},
                                         {"64 MiB, working, fresh", 1, 64 * kMiB, 0, true, true}}};

// Work for some tens of milliseconds.
void give_work(CUdeviceptr at, std::size_t bytes) {
  for (int i = 0; i < 2000; ++i) check(cuMemsetD8Async(at, 1, bytes, nullptr), "giving work");
}

// Measures a handle that is created, mapped and given access to.
void print_habits(CUdeviceptr big) {
  constexpr std::size_t kWorkBytes = 64 * kMiB;
  std::vector<unsigned char> other(64 * kMiB);
  CUdeviceptr work = 0;
  check(cuMemAlloc(&work, kWorkBytes), "allocating");
  CUdeviceptr unused = big + kBig / 4;
  for (const Habit& habit : kHabits) {
    Costs costs;
    Handles all;
    const CUdeviceptr first = unused;
    for (std::size_t turn = 0; turn < kTurns / 4; ++turn) {
      Handles handles(kBatch);
      const CUdeviceptr at = habit.fresh ? unused : big + kBig / 2;
      if (habit.fresh) unused += kBatchBytes;
      if (habit.working) give_work(work, kWorkBytes);
      for (std::size_t i = 0; i < kBatch; i += habit.at_once) {
        for (std::size_t byte = 0; byte < habit.touched; byte += 64) other[byte] = static_cast<unsigned char>(turn);
        const auto idle = Clock::now();
        while (since(idle) < habit.idle_us) continue;
        const std::span<CUmemGenericAllocationHandle> part = std::span(handles).subspan(i, habit.at_once);
        const auto count = static_cast<double>(habit.at_once);
        auto begin = Clock::now();
        for (CUmemGenericAllocationHandle& handle : part) handle = create();
        costs.create.push_back(since(begin) / count);
        begin = Clock::now();
        map(at + i * kHandle, part);
        costs.map.push_back(since(begin) / count);
        begin = Clock::now();
        give_access(at + i * kHandle, habit.at_once * kHandle);
        costs.access.push_back(since(begin) / count);
      }
      check(cuCtxSynchronize(), "waiting");
      if (habit.fresh) {
        all.insert(all.end(), handles.begin(), handles.end());
      } else {
        unmap(at, kBatch);
        for (const CUmemGenericAllocationHandle handle : handles) check(cuMemRelease(handle), "releasing");
      }
    }
    unmap(first, all.size());
    for (const CUmemGenericAllocationHandle handle : all) check(cuMemRelease(handle), "releasing");
    std::printf("      %-24s create %5.1f map %4.1f access %5.1f us a handle\n", habit.name, median(costs.create),
                median(costs.map), median(costs.access));
  }
  check(cuMemFree(work), "freeing");
}

// Prints whether a part of a handle can be mapped, as the documentation of cuMemMap suggests with its bounds on offset
// and size, and whether the mapping then shows the right bytes.
void print_parts(CUdeviceptr big) {
  constexpr std::size_t kHalf = kHandle / 2;
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr whole = big + kBig / 2;
  const CUdeviceptr part = whole + kHandle;
  map(whole, {&handle, 1});
  give_access(whole, kHandle);
  for (unsigned char half = 0; half < 2; ++half) {
    check(cuMemsetD8(whole + half * kHalf, half, kHalf), "writing");
    const CUresult result = cuMemMap(part, kHalf, half * kHalf, handle, 0);
    std::printf("      half %d of a handle: ", half);
    if (result != CUDA_SUCCESS) {
      std::printf("refused, error %d\n", static_cast<int>(result));
      continue;
    }
    give_access(part, kHalf);
    unsigned char found = 0;
    check(cuMemcpyDtoH(&found, part + kHalf - 1, 1), "reading");
    std::printf("mapped, and shows half %d\n", found);
    check(cuMemUnmap(part, kHalf), "unmapping");
  }
  check(cuCtxSynchronize(), "waiting");  // work may still write
  unmap(whole, 1);
  check(cuMemRelease(handle), "releasing");
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t most = kHandlesThere.back();
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), most);
  CUdevice device = 0;
  CUcontext context = nullptr;
  check(cuInit(0), "starting CUDA");
  check(cuDeviceGet(&device, 0), "choosing a device");
  check(cuDevicePrimaryCtxRetain(&context, device), "retaining a context");
  check(cuCtxSetCurrent(context), "choosing a context");
  const CUdeviceptr big = reserve(kBig);
  print_parts(big);
  Handles old;
  for (const std::size_t there : kHandlesThere) {
    if (there > most) break;
    while (old.size() < there) {
      old.push_back(create());
      const CUdeviceptr at = big + (old.size() - 1) * kHandle;
      map(at, std::span(old).last(1));
      give_access(at, kHandle);
    }
    print_batches(there, big);
    if (there > 0) print_view(old, big);
    if (there == kHandlesThere[1]) print_habits(big);
  }
}
