// SPDX-License-Identifier: Apache-2.0
// Simulates, without a GPU, the memory that allocators would hold for the same requests.
//
// Each function gets the requests in the recorded order and returns how much device memory the allocator would hold. It
// uses only sizes, streams and the order of calls. The behavior on a full device is not simulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/placement/stitched_view.h"
#include "plan/problem.h"

namespace stalloc::plan {

struct PeakMemory {
  std::uint64_t live_bytes = 0;  // peak of the bytes in use, each request rounded up to 512 B
  std::uint64_t held_bytes = 0;  // peak of the bytes taken from the device
  // Peak of the bytes of whole blocks in use, which PyTorch calls max_memory_allocated. For stalloc the same as
  // live_bytes.
  std::uint64_t block_bytes = 0;
};

// Called after each request with the bytes held then. May be empty.
using HeldObserver = std::function<void(std::size_t request, std::uint64_t held_bytes)>;

// The stream of each request as a placement numbers streams: from 1 on, since 0 is kAnyStream.
std::vector<StreamIndex> number_streams(const Problem& problem);

// Keeps in a problem only the requests to a framework's allocator; the others keep their place in the sequence and take
// no bytes. Requests to the framework's allocator are the stream-ordered ones, since recorded frameworks request
// tensors in this way, and libraries that call cudaMalloc themselves (cuBLAS, NCCL) bypass the framework's allocator.
// If no request is stream-ordered, they are all requests. Requests captured in a CUDA graph and probes of the free
// memory are left out in either case.
Problem framework_requests(Problem problem);

// Keeps only the other requests for device memory, which bypass a framework's allocator, without probes.
Problem outside_requests(Problem problem);

// PyTorch's caching allocator, as c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11 describes it with default settings.
// Sizes are rounded up to 512 B. Requests up to 1 MiB come from segments of 2 MiB; larger ones, below 10 MiB, from
// segments of 20 MiB; others from segments of their own size rounded up to 2 MiB. The smallest free block of the same
// stream and pool is taken, and split where more than 1 MiB (small pool: 512 B) would be left. Freed neighbors merge.
// Segments are never given back.
PeakMemory simulate_caching(const Problem& problem, const HeldObserver& observer = nullptr);

// The same with PYTORCH_ALLOC_CONF=expandable_segments:True: one segment for each stream and pool, which grows at its
// end in pages of 2 MiB (small) or 20 MiB (large); every block may be split. Pages are never given back.
PeakMemory simulate_expandable(const Problem& problem, const HeldObserver& observer = nullptr);

// stalloc without a plan (plan/online/online_allocator.h), on a device whose pages have `granularity` bytes
// (is_granularity).
PeakMemory simulate_online(const Problem& problem, std::uint64_t granularity, const HeldObserver& observer = nullptr);

// stalloc with a plan: the plan's memory, plus the memory that stalloc would hold without a plan for the requests that
// the plan does not serve. The plan must be sound for the problem.
PeakMemory simulate_planned(const Problem& problem, const DevicePlan& plan, const HeldObserver& observer = nullptr);

}  // namespace stalloc::plan
