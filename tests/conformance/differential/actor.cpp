// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/differential/actor.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "tests/conformance/differential/asking.h"
#include "tests/conformance/differential/capturing.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kLiveMost = 24;
constexpr std::size_t kLiveBytesMost = 96 * kMiB;
constexpr std::array<std::size_t, 14> kSizes{1,         4,         512,   4096,      20'000,   64 * 1024, 700'000,
                                             1'300'000, kPage - 4, kPage, kPage + 4, 3 * kMiB, 5'000'000, 9 * kMiB};
constexpr std::size_t kStreams = 3;
constexpr CUstream kDefault = nullptr;

}  // namespace

Actor::Actor(World& world, std::size_t index, std::uint64_t seed)
    : log(*world.machines[index % world.machines.size()], fmt::format("actor {}", index)),
      world_(world),
      index_(index),
      machine_(*world.machines[index % world.machines.size()]),
      random_(seed * 64 + index),
      next_((index + 1) << 48 | world.tensors) {
  for (Read& read : reads_) read.memory = std::make_unique<Pinned>(machine_, kMostReadBytes);
  make_things();
}

Actor::~Actor() {
  enter();
  for (const Tensor& tensor : tensors_) {
    world_.ledger.remove(tensor.at);
    machine_.cuda.cuMemFreeAsync(tensor.at, streams_.front());
  }
  for (Read& read : reads_) machine_.cuda.cuEventDestroy(read.done);
  machine_.cuda.cuEventDestroy(event_);
  for (const CUevent event : kept_) machine_.cuda.cuEventDestroy(event);
  for (const CUstream stream : streams_) {
    machine_.cuda.cuStreamSynchronize(stream);
    machine_.cuda.cuStreamDestroy(stream);
  }
  machine_.cuda.cuMemPoolDestroy(pool_);
}

void Actor::make_things() {
  enter();
  streams_.clear();
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams_.push_back(machine_.make_stream(i == 1 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
  }
  pool_ = machine_.make_pool();
  machine_.must(machine_.cuda.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  for (CUevent& event : kept_)
    machine_.must(machine_.cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  for (Read& read : reads_) {
    machine_.must(machine_.cuda.cuEventCreate(&read.done, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    read.bytes = 0;
  }
}

CUstream Actor::any_stream() {
  const std::size_t choice = below(kStreams + 3);
  if (choice == kStreams) return kDefault;
  if (choice == kStreams + 1) return CU_STREAM_LEGACY;
  if (choice == kStreams + 2) return CU_STREAM_PER_THREAD;
  return streams_[choice];
}

std::string Actor::name(CUstream stream) const {
  if (stream == kDefault) return "the default stream";
  if (stream == CU_STREAM_LEGACY) return "the legacy stream";
  if (stream == CU_STREAM_PER_THREAD) return "the thread's stream";
  const auto found = std::find(streams_.begin(), streams_.end(), stream);
  return found == streams_.end() ? "a stream" : fmt::format("stream {}", found - streams_.begin());
}

// Names a tensor by its number among those of its actor.
std::string Actor::name(const Tensor& tensor) const {
  return fmt::format("tensor {}.{}", (tensor.number >> 48) - 1,
                     (tensor.number & ((std::uint64_t{1} << 48) - 1)) - world_.tensors);
}

std::size_t Actor::any_size() {
  if (one_in(3)) return 4 + below(std::size_t{1} << (8 + below(15)));
  return kSizes[below(kSizes.size())];
}

void Actor::act() {
  using Deed = void (Actor::*)();
  const auto asking = [this] { Asking(*this).ask(); };
  try {
    const std::size_t choice = below(1000);
    if (choice < 380) return live_bytes_ < kLiveBytesMost && tensors_.size() < kLiveMost ? allocate() : free_any();
    if (choice < 720) return tensors_.empty() ? allocate() : free_any();
    if (choice < 740) return synchronize();
    if (choice < 790) return use_events();
    if (choice < 840) return copy();
    if (choice < 890) return asking();
    if (choice < 920) return with("captures") ? Capturing(*this).capture() : allocate();
    constexpr std::array<Deed, 7> kRare{&Actor::trim,          &Actor::settings,     &Actor::replace_stream,
                                        &Actor::other_context, &Actor::other_device, &Actor::allocate_huge,
                                        &Actor::trim};
    (this->*kRare[below(kRare.size())])();
  } catch (const std::exception& error) {
    log.line(std::string("FAILED: ") + error.what());
  }
}

void Actor::allocate() {
  const Driver& cuda = machine_.cuda;
  Tensor what{0, 0, any_size(), any_stream(), one_in(12), false};
  what.of_pool = !what.plain && one_in(4);
  if (what.plain) {
    const CUresult result = cuda.cuMemAlloc(&what.at, what.bytes);
    book("cuMemAlloc", result, what);
  } else if (what.of_pool) {
    const CUresult result = cuda.cuMemAllocFromPoolAsync(&what.at, what.bytes, pool_, what.stream);
    book("cuMemAllocFromPoolAsync", result, what);
  } else {
    const CUresult result = cuda.cuMemAllocAsync(&what.at, what.bytes, what.stream);
    book("cuMemAllocAsync", result, what);
  }
}

bool Actor::book(const std::string& call, CUresult result, Tensor what) {
  what.number = next_++;
  log.answer(fmt::format("{} = {} of {} bytes on {}", name(what), call, what.bytes, name(what.stream)), result);
  if (result != CUDA_SUCCESS) return false;
  if (!world_.ledger.add(what.at, what.bytes)) log.line("WRONG: live tensors share addresses");
  if (what.at % 256 != 0) log.line("WRONG: a tensor is not aligned to 256 bytes");
  tensors_.push_back(what);
  live_bytes_ += what.bytes;
  fill(machine_, Stripes::of(what.bytes, what.number), what.at, pattern_of(what.number), what.stream);
  return true;
}

// Allocates the block for a moment only, so that two of them never live together.
void Actor::allocate_huge() {
  CUdeviceptr at = 0;
  const std::size_t bytes = world_.total / 32 / kPage * kPage + below(4) * kMiB;
  const bool plain = one_in(3);
  const CUstream stream = any_stream();
  const CUresult result =
      plain ? machine_.cuda.cuMemAlloc(&at, bytes) : machine_.cuda.cuMemAllocAsync(&at, bytes, stream);
  if (!book(plain ? "cuMemAlloc" : "cuMemAllocAsync", result, {0, at, bytes, stream, plain, false})) return;
  free(take(tensors_.size() - 1), any_stream());
  synchronize();
}

Actor::Tensor Actor::take(std::size_t index) {
  std::swap(tensors_[index], tensors_.back());
  const Tensor tensor = tensors_.back();
  tensors_.pop_back();
  live_bytes_ -= tensor.bytes;
  return tensor;
}

void Actor::free_any() {
  const std::size_t index = below(tensors_.size());
  if (one_in(6)) return check(tensors_[index], any_stream());
  const Tensor tensor = take(index);
  free(tensor, one_in(3) ? any_stream() : tensor.stream);
}

// Checks the tensor a last time, and frees it.
void Actor::free(const Tensor& tensor, CUstream stream) {
  check(tensor, tensor.stream);
  world_.ledger.remove(tensor.at);  // before the free: from then on another actor may get the addresses
  if (one_in(8)) {
    machine_.wait(tensor.stream);
    log.answer("cuMemFree of " + name(tensor), machine_.cuda.cuMemFree(tensor.at));
    return;
  }
  if (stream != tensor.stream) machine_.order(tensor.stream, stream);
  log.answer(fmt::format("cuMemFreeAsync of {} on {}", name(tensor), name(stream)),
             machine_.cuda.cuMemFreeAsync(tensor.at, stream));
}

void Actor::check(const Tensor& tensor, CUstream stream) {
  Read& slot = reads_[next_read_++ % reads_.size()];
  compare(slot);
  const Stripes stripes = Stripes::of(tensor.bytes, tensor.number);
  if (stream != tensor.stream) machine_.order(tensor.stream, stream);
  read(machine_, stripes, tensor.at, slot.memory->data(), stream);
  machine_.must(machine_.cuda.cuEventRecord(slot.done, stream), "cuEventRecord");
  if (stream != tensor.stream) machine_.order(stream, tensor.stream);
  slot.tensor = tensor.number;
  slot.bytes = stripes.read_bytes();
}

void Actor::compare(Read& read) {
  if (read.bytes == 0) return;
  machine_.must(machine_.cuda.cuEventSynchronize(read.done), "cuEventSynchronize");
  const bool right = holds(read.memory->data(), read.bytes, pattern_of(read.tensor));
  const Tensor named{read.tensor};
  log.line(
      fmt::format("{}{} held {}", right ? "" : "WRONG: ", name(named), right ? "what was written" : "something else"));
  read.bytes = 0;
}

// Copies the beginning of one tensor over another's and puts back what was there: both hold what they held.
void Actor::copy() {
  if (tensors_.size() < 2) return;
  const Tensor& from = any_tensor();
  const Tensor& to = any_tensor();
  if (from.number == to.number) return;
  const std::size_t bytes = std::min({from.bytes, to.bytes, std::size_t{64} * 1024});
  CUdeviceptr kept = 0;
  const CUstream stream = to.stream;
  const CUresult result = machine_.cuda.cuMemAllocAsync(&kept, bytes, stream);
  log.answer(fmt::format("a copy of {} bytes of {} on {}", bytes, name(to), name(stream)), result);
  if (result != CUDA_SUCCESS) return;
  const Driver& cuda = machine_.cuda;
  machine_.must(cuda.cuMemcpyDtoDAsync(kept, to.at, bytes, stream), "cuMemcpyDtoDAsync");
  if (from.stream != stream) machine_.order(from.stream, stream);
  machine_.must(cuda.cuMemcpyDtoDAsync(to.at, from.at, bytes, stream), "cuMemcpyDtoDAsync");
  machine_.must(cuda.cuMemcpyDtoDAsync(to.at, kept, bytes, stream), "cuMemcpyDtoDAsync");
  if (from.stream != stream) machine_.order(stream, from.stream);
  log.answer("its free", cuda.cuMemFreeAsync(kept, stream));
}

void Actor::synchronize() {
  const CUstream stream = any_stream();
  if (one_in(2)) {
    log.answer("cuStreamSynchronize of " + name(stream), machine_.cuda.cuStreamSynchronize(stream));
    return;
  }
  log.answer("cuEventRecord on " + name(stream), machine_.cuda.cuEventRecord(event_, stream));
  log.answer("cuEventSynchronize", machine_.cuda.cuEventSynchronize(event_));
  log.answer("cuEventQuery", machine_.cuda.cuEventQuery(event_));
}

// Records events and waits for them, though nothing depends on it: what is freed before a record, after it or at the
// same time must be as safe as without it. Shared events are recorded by all actors of the machine at once.
void Actor::use_events() {
  const Driver& cuda = machine_.cuda;
  const bool shared = !world_.events.empty() && one_in(3);
  CUevent& own = kept_[below(kept_.size())];
  const CUevent event = shared ? world_.events[index_ % world_.machines.size()][below(3)] : own;
  const std::string named = shared ? "a shared event" : "an event";
  const CUstream stream = any_stream();
  switch (below(8)) {
    case 0:
    case 1:
    case 2:
      log.answer("cuEventRecord of " + named + " on " + name(stream), cuda.cuEventRecord(event, stream));
      return;
    case 3:
    case 4:
    case 5:
      log.answer("cuStreamWaitEvent for " + named + " on " + name(stream), cuda.cuStreamWaitEvent(stream, event, 0));
      return;
    case 6: {
      const CUresult result = cuda.cuEventQuery(event);  // depends on the device's timing
      log.answer("cuEventQuery of " + named, result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result);
      return;
    }
    default:
      if (shared) return;
      log.answer("cuEventDestroy of " + named, cuda.cuEventDestroy(own));
      log.answer("cuEventCreate", cuda.cuEventCreate(&own, CU_EVENT_DISABLE_TIMING));
      return;
  }
}

void Actor::trim() {
  if (!with("trims")) return;
  const std::size_t keep = one_in(2) ? 0 : below(64) * kMiB;
  const bool own = one_in(3);
  log.answer(fmt::format("cuMemPoolTrimTo of the {} pool to {} MiB", own ? "own" : "default", keep / kMiB),
             machine_.cuda.cuMemPoolTrimTo(own ? pool_ : machine_.default_pool(), keep));
}

// Sets and reads attributes of the actor's own pool, or sets the threshold of the shared one.
void Actor::settings() {
  const Driver& cuda = machine_.cuda;
  cuuint64_t threshold = one_in(2) ? 0 : one_in(2) ? UINT64_MAX : below(256) * kMiB;
  if (one_in(3)) {
    log.answer(fmt::format("the default pool's release threshold set to {}", threshold),
               cuda.cuMemPoolSetAttribute(machine_.default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    return;
  }
  log.answer(fmt::format("the own pool's release threshold set to {}", threshold),
             cuda.cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  cuuint64_t answer = 0;
  log.answer("and read", cuda.cuMemPoolGetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &answer));
  log.line(fmt::format("it is {}", answer));
  if (!with("figures")) return;
  log.answer("the own pool's use", cuda.cuMemPoolGetAttribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &answer));
  log.line(fmt::format("it is {}", answer));
  cuuint64_t nothing = 0;
  log.answer("its high mark set back", cuda.cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &nothing));
}

void Actor::leave_stream(CUstream stream, CUstream to) {
  const bool used =
      std::any_of(tensors_.begin(), tensors_.end(), [&](const Tensor& tensor) { return tensor.stream == stream; });
  if (!used) return;
  machine_.order(stream, to);
  for (Tensor& tensor : tensors_) {
    if (tensor.stream == stream) tensor.stream = to;
  }
}

// Destroys a stream on which work and frees are pending, and makes another.
void Actor::replace_stream() {
  const std::size_t index = below(streams_.size());
  leave_stream(streams_[index], streams_[(index + 1) % streams_.size()]);
  log.answer("cuStreamDestroy of " + name(streams_[index]), machine_.cuda.cuStreamDestroy(streams_[index]));
  streams_[index] = machine_.make_stream(one_in(4) ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
}

// Makes a context that lives for some requests.
void Actor::other_context() {
  if (!with("contexts")) return;
  const Driver& cuda = machine_.cuda;
  CUcontext made = nullptr;
  log.answer("cuCtxCreate", cuda.create_context(&made, 0, machine_.device));
  const CUstream stream = machine_.make_stream();
  for (std::size_t i = 1 + below(3); i > 0; --i) {
    CUdeviceptr at = 0;
    const bool plain = one_in(2);
    const std::size_t bytes = any_size();
    const CUresult result = plain ? cuda.cuMemAlloc(&at, bytes) : cuda.cuMemAllocAsync(&at, bytes, stream);
    log.answer(fmt::format("under it {} of {} bytes", plain ? "cuMemAlloc" : "cuMemAllocAsync", bytes), result);
    if (result != CUDA_SUCCESS) continue;
    if (!world_.ledger.add(at, bytes)) log.line("WRONG: live tensors share addresses");
    fill(machine_, Stripes::of(bytes, i), at, pattern_of(i), stream);
    world_.ledger.remove(at);
    log.answer("its free", plain ? cuda.cuMemFree(at) : cuda.cuMemFreeAsync(at, stream));
  }
  log.answer("cuStreamSynchronize there", cuda.cuStreamSynchronize(stream));
  log.answer("cuCtxDestroy", cuda.cuCtxDestroy(made));
  enter();
}

// Lets the other device write to memory of this actor's pool.
void Actor::other_device() {
  if (!world_.peers || !with("peers")) return;
  const Driver& cuda = machine_.cuda;
  const Machine& other = *world_.machines[(index_ + 1) % world_.machines.size()];
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, other.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  log.answer("access of the other device to the own pool", cuda.cuMemPoolSetAccess(pool_, &access, 1));
  Tensor what{0, 0, any_size(), streams_.front(), false, true};
  const CUresult result = cuda.cuMemAllocFromPoolAsync(&what.at, what.bytes, pool_, what.stream);
  if (!book("cuMemAllocFromPoolAsync for the other device", result, what)) return;
  machine_.wait(what.stream);
  other.join();
  const CUstream stream = other.make_stream();
  const Tensor& tensor = tensors_.back();
  const Stripes stripes = Stripes::of(tensor.bytes, tensor.number);
  fill(other, stripes, tensor.at, pattern_of(tensor.number), stream);
  const Pinned host(other, kMostReadBytes);
  read(other, stripes, tensor.at, host.data(), stream);
  log.answer("the other device's work", cuda.cuStreamSynchronize(stream));
  if (!holds(host.data(), stripes.read_bytes(), pattern_of(tensor.number))) log.line("WRONG: the other device's data");
  other.destroy(stream);
  enter();
}

void Actor::leave_thread() {
  for (const CUstream stream : {kDefault, CU_STREAM_PER_THREAD}) leave_stream(stream, streams_.front());
}

void Actor::finish() {
  for (const CUstream stream : streams_) machine_.wait(stream);
  for (Read& read : reads_) compare(read);
}

void Actor::free_all() {
  while (!tensors_.empty()) free(take(tensors_.size() - 1), streams_.front());
  finish();
}

Actor::Tensor Actor::give() {
  if (tensors_.empty()) return {};
  const std::size_t index = below(tensors_.size());
  if (tensors_[index].of_pool) return {};
  const Tensor tensor = take(index);
  machine_.wait(tensor.stream);
  return tensor;
}

void Actor::admit(const Tensor& tensor) {
  tensors_.push_back(tensor);
  tensors_.back().stream = streams_.front();
  live_bytes_ += tensor.bytes;
}

void Actor::prepare_reset() {
  for (std::size_t i = tensors_.size(); i-- > 0;) {
    if (!tensors_[i].plain) free(take(i), streams_.front());
  }
  finish();
  machine_.must(machine_.cuda.cuStreamSynchronize(streams_.front()), "cuStreamSynchronize");
  machine_.must(machine_.cuda.cuMemPoolDestroy(pool_), "cuMemPoolDestroy");
}

void Actor::begin_again() {
  for (const Tensor& tensor : tensors_) world_.ledger.remove(tensor.at);
  tensors_.clear();
  live_bytes_ = 0;
  make_things();
}

}  // namespace stalloc::conformance
