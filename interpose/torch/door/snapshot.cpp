// SPDX-License-Identifier: Apache-2.0
// torch.cuda.memory._snapshot: adds the heap's memory, as segments, to those of the native allocator.
//
// Each physical byte is shown once, so the sizes of all segments add up to the held memory. A block in a stitched view
// is a segment of its own, and its bytes are cut out of the segments of the home view. A small block that lies beside
// large ones is a segment of its own, too, since PyTorch's segments have either small or large blocks.
#include <algorithm>
#include <cstdint>

#include "interpose/torch/door/allocator.h"

namespace stalloc::torch::door {
namespace {

struct Span {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool for_small = false;  // in the part that serves only small requests
};

// The heap's memory, as `describe` reports it.
struct HeapMemory {
  stalloc_door_held held;
  std::vector<Span> home;            // mapped ranges; adjacent ones of the same kind are joined
  std::vector<Span> used_elsewhere;  // home ranges whose bytes are shown in another segment
};

// A live block, as far as a snapshot needs it.
struct LiveBlock {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::size_t requested = 0;
  cudaStream_t stream = nullptr;
  Context context;
};

bool is_small(const LiveBlock& block) { return Statistics::pool_of(block.end - block.begin) == Statistics::kSmall; }

bool is_for_small(const stalloc_door_held& held, std::uintptr_t address) {
  return address >= held.small_begin && address < held.small_end;
}

void add_home(void* data, std::uintptr_t address, std::uint64_t bytes) {
  HeapMemory& memory = *static_cast<HeapMemory*>(data);
  const bool for_small = is_for_small(memory.held, address);
  if (!memory.home.empty() && memory.home.back().end == address && memory.home.back().for_small == for_small) {
    memory.home.back().end += bytes;
  } else {
    memory.home.push_back({address, address + bytes, for_small});
  }
}

void add_used(void* data, std::uintptr_t address, std::uint64_t bytes) {
  static_cast<HeapMemory*>(data)->used_elsewhere.push_back({address, address + bytes});
}

// Returns `home` without `cut`.
std::vector<Span> without(std::vector<Span> home, std::vector<Span> cut) {
  const auto before = [](const Span& a, const Span& b) { return a.begin < b.begin; };
  std::sort(home.begin(), home.end(), before);
  std::sort(cut.begin(), cut.end(), before);
  std::vector<Span> left;
  auto next = cut.begin();
  for (Span span : home) {
    while (next != cut.end() && next->end <= span.begin) ++next;
    for (auto each = next; each != cut.end() && each->begin < span.end; ++each) {
      if (each->begin > span.begin) left.push_back({span.begin, each->begin, span.for_small});
      span.begin = std::max(span.begin, each->end);
    }
    if (span.begin < span.end) left.push_back(span);
  }
  return left;
}

native::BlockInfo free_block(std::uintptr_t bytes) {
  native::BlockInfo info;
  info.size = bytes;
  return info;
}

native::SegmentInfo make_segment(int device, const Span& span, const LiveBlock* begin, const LiveBlock* end) {
  native::SegmentInfo segment;
  segment.device = static_cast<c10::DeviceIndex>(device);
  segment.address = span.begin;
  segment.total_size = span.end - span.begin;
  segment.is_large = !span.for_small;
  segment.is_expandable = true;  // mapped, like the native allocator's expandable segments
  std::uintptr_t at = span.begin;
  for (const LiveBlock* block = begin; block != end; ++block) {
    if (block->begin > at) segment.blocks.push_back(free_block(block->begin - at));
    native::BlockInfo info;
    info.size = block->end - block->begin;
    info.requested_size = block->requested;
    info.allocated = info.active = true;
    info.context_when_allocated = block->context;
    segment.allocated_size += info.size;
    segment.active_size += info.size;
    segment.requested_size += info.requested_size;
    segment.blocks.push_back(std::move(info));
    segment.stream = block->stream;
    at = block->end;
  }
  if (at < span.end) segment.blocks.push_back(free_block(span.end - at));
  return segment;
}

// Pre: `live` is sorted by address.
void append_segments(int device, const std::vector<Span>& pieces, const std::vector<LiveBlock>& live,
                     std::vector<native::SegmentInfo>* segments) {
  const LiveBlock* block = live.data();
  const LiveBlock* const last = live.data() + live.size();
  const auto append_stitched = [&](std::uintptr_t until) {
    for (; block != last && block->begin < until; ++block) {
      segments->push_back(make_segment(device, {block->begin, block->end, is_small(*block)}, block, block + 1));
    }
  };
  for (const Span& piece : pieces) {
    append_stitched(piece.begin);
    const LiveBlock* first = block;
    while (block != last && block->end <= piece.end) ++block;
    segments->push_back(make_segment(device, piece, first, block));
  }
  append_stitched(~std::uintptr_t{0});
}

std::size_t active_bytes(const std::vector<native::SegmentInfo>& segments, int device) {
  std::size_t bytes = 0;
  for (const native::SegmentInfo& segment : segments) bytes += segment.device == device ? segment.active_size : 0;
  return bytes;
}

}  // namespace

native::SnapshotInfo DoorAllocator::take_snapshot(MempoolId_t pool, bool traces) {
  native::SnapshotInfo snapshot = native_snapshot(pool, traces);
  if (traces) history_.merge_into(&snapshot.device_traces);
  const bool of_all = pool == MempoolId_t{0, 0};
  for (int device = 0; of_all && device < devices_.load(); ++device) append_heap(device, &snapshot.segments);
  std::sort(snapshot.segments.begin(), snapshot.segments.end(), [](const auto& a, const auto& b) {
    return a.device != b.device ? a.device < b.device : a.address < b.address;
  });
  // A snapshot's own entry is not part of it. Where entries do not name their pool, all of them are the door's.
  if (of_all || STALLOC_TORCH_MINOR < 8) {
    for (int device = 0; device < devices_.load(); ++device) {
      history_.add_snapshot(static_cast<c10::DeviceIndex>(device), active_bytes(snapshot.segments, device));
    }
  }
  return snapshot;
}

// Appends the heap's memory on a device.
void DoorAllocator::append_heap(int device, std::vector<native::SegmentInfo>* segments) {
  HeapMemory memory{library_.held(device), {}, {}};
  const stalloc_door_visitor visitor{&memory, add_home, [](void*, std::uintptr_t, std::uint64_t) {}, add_used};
  library_.describe(device, &visitor);
  std::vector<LiveBlock> live;
  DeviceState& state = state_of(device);
  {
    const std::lock_guard lock(state.mutex);
    state.blocks.for_each([&](const Block& block) {
      const auto at = reinterpret_cast<std::uintptr_t>(block.address);
      live.push_back({at, at + block.bytes(), block.requested, block.stream,
                      block.extras == nullptr ? nullptr : block.extras->context});
    });
  }
  std::sort(live.begin(), live.end(), [](const LiveBlock& a, const LiveBlock& b) { return a.begin < b.begin; });
  for (const LiveBlock& block : live) {
    if (is_small(block) && !is_for_small(memory.held, block.begin)) {
      memory.used_elsewhere.push_back({block.begin, block.end});
    }
  }
  append_segments(device, without(std::move(memory.home), std::move(memory.used_elsewhere)), live, segments);
}

}  // namespace stalloc::torch::door
