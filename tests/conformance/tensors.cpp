// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/tensors.h"

#include <iterator>

namespace stalloc::conformance {

bool Ledger::add(CUdeviceptr at, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  const auto next = live_.lower_bound(at);
  const bool overlaps_next = next != live_.end() && next->first < at + bytes;
  const bool overlaps_last = next != live_.begin() && std::prev(next)->first + std::prev(next)->second > at;
  live_[at] = bytes;
  return !overlaps_next && !overlaps_last;
}

void Ledger::remove(CUdeviceptr at) {
  const std::scoped_lock lock(mutex_);
  live_.erase(at);
}

Tensors::Tensors(const Machine& machine, Report& report, Ledger& ledger, std::size_t largest, std::uint64_t first)
    : machine_(machine), report_(report), ledger_(ledger), next_(first), reads_(kReads) {
  for (Read& read : reads_) {
    read.memory = std::make_unique<Pinned>(machine, largest);
    machine.must(machine.cuda.cuEventCreate(&read.done, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
}

Tensors::~Tensors() {
  for (Read& read : reads_) machine_.cuda.cuEventDestroy(read.done);
}

std::uint64_t Tensors::allocate(std::size_t bytes, CUstream stream) {
  return admit(machine_.allocate(bytes, stream), bytes, stream);
}

std::uint64_t Tensors::allocate_plain(std::size_t bytes, CUstream stream) {
  return admit(machine_.allocate_plain(bytes), bytes, stream);
}

std::uint64_t Tensors::admit(CUdeviceptr at, std::size_t bytes, CUstream stream) {
  const std::uint64_t tensor = next_++;
  report_.expect(ledger_.add(at, bytes), "live tensors share addresses");
  report_.expect(at % 256 == 0, "a tensor is not aligned to 256 bytes");
  live_[tensor] = {at, bytes, stream};
  machine_.fill(at, bytes, pattern_of(tensor), stream);
  return tensor;
}

void Tensors::use(std::uint64_t tensor, CUstream stream) {
  const Tensor& what = live_.at(tensor);
  machine_.order(what.stream, stream);
  check(tensor, what, stream);
  machine_.order(stream, what.stream);
}

Tensors::Tensor Tensors::dismiss(std::uint64_t tensor) {
  const Tensor what = live_.at(tensor);
  live_.erase(tensor);
  check(tensor, what, what.stream);
  ledger_.remove(what.at);  // before the free: from then on another thread may get the addresses
  return what;
}

void Tensors::free_on(std::uint64_t tensor, CUstream stream) {
  const Tensor what = dismiss(tensor);
  if (stream != what.stream) machine_.order(what.stream, stream);
  machine_.free(what.at, stream);
}

void Tensors::free_plain(std::uint64_t tensor) {
  const Tensor what = dismiss(tensor);
  machine_.wait(what.stream);
  machine_.free_plain(what.at);
}

void Tensors::check(std::uint64_t tensor, const Tensor& what, CUstream stream) {
  Read& read = reads_[next_read_++ % kReads];
  compare(read);
  machine_.read(read.memory->data(), what.at, what.bytes, stream);
  machine_.must(machine_.cuda.cuEventRecord(read.done, stream), "cuEventRecord");
  read.bytes = what.bytes;
  read.pattern = pattern_of(tensor);
}

void Tensors::compare(Read& read) {
  if (read.bytes == 0) return;
  machine_.must(machine_.cuda.cuEventSynchronize(read.done), "cuEventSynchronize");
  report_.expect(holds(read.memory->data(), read.bytes, read.pattern), "a tensor held wrong data");
  read.bytes = 0;
}

void Tensors::finish() {
  while (!live_.empty()) free(live_.begin()->first);
  for (Read& read : reads_) compare(read);
}

std::uint64_t Tensors::nth(std::size_t n) const {
  return std::next(live_.begin(), static_cast<std::ptrdiff_t>(n))->first;
}

}  // namespace stalloc::conformance
