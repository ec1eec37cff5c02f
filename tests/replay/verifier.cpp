// SPDX-License-Identifier: Apache-2.0
#include "tests/replay/verifier.h"

#include <algorithm>
#include <cstring>

namespace stalloc::replay {
namespace {

constexpr std::size_t kMismatchesKept = 10;
constexpr std::uint64_t kWord = sizeof(std::uint32_t);

// Where the bytes stop being the pattern, which a piece of less than a word has in its lowest byte only; `bytes` if
// nowhere. `read` is aligned to words.
std::uint64_t first_wrong(const char* read, std::uint64_t bytes, std::uint32_t pattern) {
  if (bytes < kWord) {
    const char* const end = read + bytes;
    return static_cast<std::uint64_t>(
        std::find_if(read, end, [&](char byte) { return byte != static_cast<char>(pattern); }) - read);
  }
  const auto* const words = reinterpret_cast<const std::uint32_t*>(read);
  const auto* const end = words + bytes / kWord;
  const auto differs = [pattern](std::uint32_t word) { return word != pattern; };
  return static_cast<std::uint64_t>(std::find_if(words, end, differs) - words) * kWord;
}

}  // namespace

char* Ring::take(std::uint64_t bytes) {
  bytes = (bytes + kWord - 1) / kWord * kWord;
  std::unique_lock lock(mutex_);
  const bool wraps = head_ + bytes > kBytes;
  const std::uint64_t padding = wraps ? kBytes - head_ : 0;
  returned_.wait(lock, [&] { return used_ + padding + bytes <= kBytes; });
  char* const block = memory_ + (wraps ? 0 : head_);
  head_ = wraps ? bytes : head_ + bytes;
  used_ += padding + bytes;
  blocks_.push_back(padding + bytes);
  return block;
}

void Ring::give_back() {
  const std::scoped_lock lock(mutex_);
  used_ -= blocks_[first_++];
  if (first_ * 2 > blocks_.size()) {
    blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  returned_.notify_one();
}

// One piece on its way back.
struct Verifier::Check {
  Verifier* verifier = nullptr;
  Ring* ring = nullptr;
  const char* read = nullptr;
  Piece piece;
  std::uint64_t tensor = 0;
};

CUresult Verifier::write(std::uint64_t tensor, CUdeviceptr address, std::uint64_t bytes, CUstream stream) {
  const Driver& driver = api_.driver();
  const std::uint32_t pattern = pattern_of(tensor);
  for (const Piece& piece : pieces_of(address, bytes, verify_)) {
    const CUdeviceptr at = address + piece.offset;
    CUresult result = CUDA_SUCCESS;
    if (piece.row_bytes < kWord) {
      result = driver.cuMemsetD8Async(at, static_cast<unsigned char>(pattern), piece.row_bytes, stream);
    } else if (piece.rows == 1) {
      result = driver.cuMemsetD32Async(at, pattern, piece.row_bytes / kWord, stream);
    } else {
      result = driver.cuMemsetD2D32Async(at, piece.pitch, pattern, piece.row_bytes / kWord, piece.rows, stream);
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult Verifier::check(std::uint64_t tensor, CUdeviceptr address, std::uint64_t bytes, CUstream stream) {
  for (const Piece& piece : pieces_of(address, bytes, verify_)) {
    Ring* ring = nullptr;
    if (const CUresult result = ring_of(stream, &ring)) return result;
    char* const block = ring->take(piece.bytes());
    if (const CUresult result = read(piece, address, block, stream)) return result;
    auto check = std::make_unique<Check>(Check{this, ring, block, piece, tensor});
    if (const CUresult result = api_.driver().cuLaunchHostFunc(stream, &Verifier::compare, check.get())) return result;
    check.release();  // NOLINT(bugprone-unused-return-value): `compare` owns it now
  }
  return CUDA_SUCCESS;
}

CUresult Verifier::ring_of(CUstream stream, Ring** ring) {
  std::unique_ptr<Ring>& slot = rings_[stream];
  if (slot == nullptr) {
    void* memory = nullptr;
    if (const CUresult result = api_.driver().cuMemHostAlloc(&memory, Ring::kBytes, 0)) return result;
    slot = std::make_unique<Ring>(static_cast<char*>(memory));
  }
  *ring = slot.get();
  return CUDA_SUCCESS;
}

CUresult Verifier::read(const Piece& piece, CUdeviceptr address, char* to, CUstream stream) const {
  if (piece.rows == 1) {
    return api_.driver().cuMemcpyDtoHAsync(to, address + piece.offset, piece.row_bytes, stream);
  }
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = address + piece.offset;
  copy.srcPitch = piece.pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to;
  copy.dstPitch = piece.row_bytes;
  copy.WidthInBytes = piece.row_bytes;
  copy.Height = piece.rows;
  return api_.driver().cuMemcpy2DAsync(&copy, stream);
}

void CUDA_CB Verifier::compare(void* owned) {
  const std::unique_ptr<Check> check(static_cast<Check*>(owned));
  const Piece& piece = check->piece;
  const std::uint64_t at = first_wrong(check->read, piece.bytes(), pattern_of(check->tensor));
  if (at < piece.bytes()) {
    const std::uint64_t offset = piece.offset + at / piece.row_bytes * piece.pitch + at % piece.row_bytes;
    std::uint32_t found = 0;
    std::memcpy(&found, check->read + at, std::min(kWord, piece.bytes() - at));
    check->verifier->report({check->tensor, offset, pattern_of(check->tensor), found});
  }
  check->ring->give_back();
}

void Verifier::report(const Mismatch& mismatch) {
  const std::scoped_lock lock(mutex_);
  const bool known = !first_.empty() && first_.back().tensor == mismatch.tensor;
  if (!known && first_.size() < kMismatchesKept) first_.push_back(mismatch);
  ++mismatched_;
}

std::vector<Mismatch> Verifier::mismatches() const {
  const std::scoped_lock lock(mutex_);
  return first_;
}

}  // namespace stalloc::replay
