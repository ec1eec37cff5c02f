// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/thread_id.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

#include "interpose/base/stream_key.h"

namespace stalloc::serve {
namespace {

constexpr std::size_t kMostThreads = 1024;

struct Entry {
  std::atomic<ThreadId> id{0};   // 0: no thread has the entry
  std::atomic<pid_t> number{0};  // the system's
};

constinit std::array<Entry, kMostThreads> entries;
constinit thread_local ThreadId own_id = 0;  // has no destructor, so it can be read until the thread has ended

// An id is the thread's number, which is never given to another one, and its entry.
Entry& entry_of(ThreadId id) noexcept { return entries[id % kMostThreads]; }

void note_end(void* id) {
  ThreadId ended = *static_cast<ThreadId*>(id);
  if (ended != 0) entry_of(ended).id.compare_exchange_strong(ended, 0, std::memory_order_relaxed);
}

// Has note_end called when the thread ends: after the destructors of its thread-local variables, before others can have
// joined it. A destructor of ours would be entered in a list by malloc, and glibc ends the program where that fails.
bool will_note_end() noexcept {
  struct Key {
    pthread_key_t key = 0;
    bool created = false;
  };
  static const Key made = [] {
    Key key;
    key.created = pthread_key_create(&key.key, note_end) == 0;
    return key;
  }();
  return made.created && pthread_setspecific(made.key, &own_id) == 0;
}

ThreadId enter_thread() noexcept {
  if (!will_note_end()) return 0;
  const std::uint64_t thread = this_thread_number();
  for (std::size_t i = 0; i < kMostThreads; ++i) {
    const std::size_t index = (thread + i) % kMostThreads;
    const ThreadId id = thread * kMostThreads + index;
    ThreadId nobody = 0;
    if (!entries[index].id.compare_exchange_strong(nobody, id, std::memory_order_relaxed)) continue;
    entries[index].number.store(static_cast<pid_t>(::syscall(SYS_gettid)), std::memory_order_relaxed);
    return own_id = id;
  }
  return 0;
}

}  // namespace

ThreadId this_thread() noexcept { return own_id != 0 ? own_id : enter_thread(); }

bool has_ended(ThreadId thread) noexcept {
  const Entry& entry = entry_of(thread);
  if (entry.id.load(std::memory_order_relaxed) != thread) return true;
  // It may have left without its destructors, or this is a child that was forked by another thread.
  const int before = errno;
  const bool gone =
      ::syscall(SYS_tgkill, ::getpid(), entry.number.load(std::memory_order_relaxed), 0) != 0 && errno == ESRCH;
  errno = before;
  return gone;
}

}  // namespace stalloc::serve
