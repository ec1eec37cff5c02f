// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/program_streams.h"

#include <atomic>
#include <mutex>
#include <new>
#include <unordered_map>

namespace stalloc {
namespace {

struct State {
  bool non_blocking = false;
  bool destroyed = false;
};

constinit std::mutex mutex;
constinit std::unordered_map<CUstream, State>* states = nullptr;  // by handle; never destroyed; guarded by the mutex
constinit std::atomic<bool> any_destroyed{false};

// Pre: the mutex is held. Throws std::bad_alloc.
State& state_of(CUstream stream) {
  if (states == nullptr) states = new std::unordered_map<CUstream, State>();
  return (*states)[stream];
}

// A copy of what is known of the stream.
State known_of(CUstream stream) noexcept {
  const std::lock_guard lock(mutex);
  if (states == nullptr) return {};
  const auto found = states->find(stream);
  return found == states->end() ? State{} : found->second;
}

}  // namespace

void note_stream_created(CUstream stream, unsigned flags) noexcept {
  try {
    const std::lock_guard lock(mutex);
    state_of(stream) = {.non_blocking = (flags & CU_STREAM_NON_BLOCKING) != 0};
  } catch (const std::bad_alloc&) {
    // Nothing is known of the stream, and it was not known as destroyed.
  }
}

bool note_stream_destroyed(CUstream stream) noexcept {
  try {
    const std::lock_guard lock(mutex);
    State& state = state_of(stream);
    const bool is_first = !state.destroyed;
    state.destroyed = true;
    any_destroyed.store(true, std::memory_order_relaxed);
    return is_first;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void note_stream_kept(CUstream stream) noexcept {
  const std::lock_guard lock(mutex);
  if (states == nullptr) return;
  if (const auto found = states->find(stream); found != states->end()) found->second.destroyed = false;
}

bool is_destroyed(CUstream stream) noexcept {
  return any_destroyed.load(std::memory_order_relaxed) && known_of(stream).destroyed;
}

bool is_non_blocking(CUstream stream) noexcept { return known_of(stream).non_blocking; }

}  // namespace stalloc
