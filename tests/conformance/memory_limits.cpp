// SPDX-License-Identifier: Apache-2.0
// Pools, what they give back, and the end of memory.
#include <array>
#include <string>
#include <vector>

#include "tests/conformance/checks.h"
#include "tests/conformance/tensors.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kKeptBack = 128 * kMiB;  // what a driver, or a plan, may keep for itself

// All memory in pieces of one size. Each piece is filled at several places, so that two pieces that overlap are
// noticed.
class Everything {
 public:
  Everything(const Machine& machine, Report& report, std::size_t piece, CUstream stream)
      : machine_(machine), report_(report), piece_(piece), stream_(stream), host_(machine, kStamps * kStamp) {}

  // Allocates pieces, by cuMemAlloc or stream-ordered, until CUDA refuses one.
  void fill_up(bool plain) {
    for (;;) {
      CUdeviceptr at = 0;
      const CUresult result =
          plain ? machine_.cuda.cuMemAlloc(&at, piece_) : machine_.cuda.cuMemAllocAsync(&at, piece_, stream_);
      if (result != CUDA_SUCCESS) {
        report_.expect(result == CUDA_ERROR_OUT_OF_MEMORY, "running out of memory returned " + machine_.name(result));
        return;
      }
      for (std::size_t i = 0; i < kStamps; ++i) machine_.fill(stamp(at, i), kStamp, pattern_of(at + i), stream_);
      pieces_.push_back(at);
    }
  }

  void check() {
    for (const CUdeviceptr at : pieces_) {
      char* const read = static_cast<char*>(host_.data());
      for (std::size_t i = 0; i < kStamps; ++i) machine_.read(read + i * kStamp, stamp(at, i), kStamp, stream_);
      machine_.wait(stream_);
      for (std::size_t i = 0; i < kStamps; ++i) {
        report_.expect(holds(read + i * kStamp, kStamp, pattern_of(at + i)), "memory was given away twice");
      }
    }
  }

  // Frees every `n`-th piece.
  void free(std::size_t n, bool plain) {
    std::vector<CUdeviceptr> kept;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (i % n != 0) {
        kept.push_back(pieces_[i]);
      } else if (plain) {
        machine_.free_plain(pieces_[i]);
      } else {
        machine_.free(pieces_[i], stream_);
      }
    }
    pieces_ = kept;
    machine_.wait(stream_);
  }

  [[nodiscard]] std::size_t count() const { return pieces_.size(); }

 private:
  static constexpr std::size_t kStamps = 16;
  static constexpr std::size_t kStamp = 4096;

  [[nodiscard]] CUdeviceptr stamp(CUdeviceptr at, std::size_t i) const {
    const std::size_t apart = (piece_ - kStamp) / (kStamps - 1) / kStamp * kStamp;
    return i + 1 == kStamps ? at + piece_ - kStamp : at + i * apart;
  }

  const Machine& machine_;
  Report& report_;
  const std::size_t piece_;
  const CUstream stream_;
  const Pinned host_;  // made first: a full card may have no room to map it
  std::vector<CUdeviceptr> pieces_;
};

}  // namespace

void pools(Machine& machine, Report& report, std::uint64_t) {
  constexpr std::size_t kBytes = 6 * kMiB;
  const CUstream stream = machine.make_stream();
  const Pinned host(machine, kBytes);
  for (const CUmemAllocationHandleType handles : {CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    const CUmemoryPool pool = machine.make_pool(handles);
    const cuuint64_t used = machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    CUdeviceptr at = 0;
    machine.must(machine.cuda.cuMemAllocFromPoolAsync(&at, kBytes, pool, stream), "cuMemAllocFromPoolAsync");
    machine.fill(at, kBytes, pattern_of(11), stream);
    const cuuint64_t more = machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    report.expect(more >= used + kBytes && more <= used + kBytes + kPage, "a pool's use does not follow a request");
    report.expect(machine.ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= more, "a pool uses more than it has");
    report.expect(machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= more, "a pool's peak is below its use");
    machine.read(host.data(), at, kBytes, stream);
    machine.free(at, stream);
    machine.wait(stream);
    report.expect(holds(host.data(), kBytes, pattern_of(11)), "a pool's memory held wrong data");
    report.expect(machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == used, "a pool's use does not follow a free");
    // Live memory outlives its pool.
    machine.must(machine.cuda.cuMemAllocFromPoolAsync(&at, kBytes, pool, stream), "cuMemAllocFromPoolAsync");
    machine.must(machine.cuda.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
    machine.fill(at, kBytes, pattern_of(12), stream);
    machine.read(host.data(), at, kBytes, stream);
    machine.free(at, stream);
    machine.wait(stream);
    report.expect(holds(host.data(), kBytes, pattern_of(12)), "memory of a destroyed pool held wrong data");
  }
  machine.destroy(stream);
}

void trim(Machine& machine, Report& report, std::uint64_t) {
  const CUmemoryPool pool = machine.default_pool();
  const CUstream stream = machine.make_stream();
  const std::size_t piece = machine.total_bytes() / 256 / kPage * kPage;
  machine.keep_all(pool, true);
  machine.must(machine.cuda.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
  const std::size_t before = machine.free_bytes();
  const cuuint64_t reserved = machine.ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  std::vector<CUdeviceptr> live;
  for (int i = 0; i < 32; ++i) live.push_back(machine.allocate(piece, stream));
  report.expect(machine.free_bytes() + 32 * piece <= before + kKeptBack, "allocating takes no memory");
  for (const CUdeviceptr at : live) machine.free(at, stream);
  machine.wait(stream);
  report.figure("MiB kept by the pool", (before - machine.free_bytes()) / kMiB);
  machine.must(machine.cuda.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
  report.expect(machine.free_bytes() + kKeptBack >= before, "trimming gives no memory back");
  report.expect(machine.ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) <= reserved + kKeptBack,
                "a trimmed pool says that it holds memory");
  machine.keep_all(pool, false);
  machine.destroy(stream);
}

void out_of_memory(Machine& machine, Report& report, std::uint64_t) {
  const CUstream stream = machine.make_stream();
  machine.must(machine.cuda.cuMemPoolTrimTo(machine.default_pool(), 0), "cuMemPoolTrimTo");
  const std::size_t before = machine.free_bytes();
  const std::size_t piece = machine.total_bytes() / 64 / kPage * kPage;
  Everything all(machine, report, piece, stream);
  Everything doubled(machine, report, 2 * piece, stream);
  std::vector<std::size_t> counts;
  for (const bool plain : {false, true, false}) {
    all.fill_up(plain);
    all.check();
    counts.push_back(all.count());
    report.figure(std::string("pieces of 1/64 of the card, ") + (plain ? "cuMemAlloc" : "stream-ordered"), all.count());
    all.free(1, plain);
  }
  report.expect(counts[0] >= 56, "memory ran out far too soon");
  report.expect(counts[1] + 2 >= counts[0] && counts[2] + 2 >= counts[0], "freed memory did not come back");
  // Every other piece free: half of all memory, in holes of one piece.
  all.fill_up(false);
  all.free(2, false);
  doubled.fill_up(false);
  doubled.check();
  all.check();
  report.figure("pieces of twice the size in the holes", doubled.count());
  doubled.free(1, false);
  all.free(1, false);
  machine.must(machine.cuda.cuMemPoolTrimTo(machine.default_pool(), 0), "cuMemPoolTrimTo");
  report.expect(machine.free_bytes() + 2 * kKeptBack >= before, "memory was lost");
  // The program then goes on as usual.
  Ledger ledger;
  {
    Tensors tensors(machine, report, ledger, kPage, 5ULL << 56);
    for (int i = 0; i < 20; ++i) tensors.allocate(kPage, stream);
    tensors.finish();
  }
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
