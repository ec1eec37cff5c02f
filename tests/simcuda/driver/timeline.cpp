// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/timeline.h"

#include <csignal>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "tests/simcuda/driver/config.h"

namespace simcuda {
namespace {

thread_local bool stream_thread = false;

// SplitMix64 (Steele, Lea, Flood 2014). The delays of a timeline depend only on the seed and the timeline's number.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

void delay(std::uint64_t& state) {
  const std::uint64_t most = config().delay_us;
  if (most == 0 || next_random(state) % config().delay_every != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(next_random(state) % (most + 1)));
}

}  // namespace

bool on_stream_thread() { return stream_thread; }

bool Point::passed() const { return timeline == nullptr || timeline->completed() >= sequence; }

void Point::wait() const {
  if (timeline != nullptr) timeline->wait(sequence);
}

std::uint64_t Timeline::submit(std::function<void()> run, std::vector<Point> after, bool takes_no_time) {
  Work work{std::move(run), std::move(after), takes_no_time};
  std::unique_lock lock(mutex_);
  const std::uint64_t number = submitted_.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (completed() + 1 == number && can_pass(work)) {
    perform(work);
    completed_.store(number, std::memory_order_release);
    return number;
  }
  if (!started_) start();
  queue_.push_back(std::move(work));
  lock.unlock();  // so that the woken thread need not wait for it
  arrived_.notify_one();
  return number;
}

bool Timeline::can_pass(const Work& work) const {
  return work.takes_no_time &&
         std::all_of(work.after.begin(), work.after.end(), [](const Point& point) { return point.passed(); });
}

// Runs the work, and destroys what it holds before anyone can know that it is done.
void Timeline::perform(Work& work) {
  if (work.run && error_ == CUDA_SUCCESS) work.run();
  work = {};
}

void Timeline::wait(std::uint64_t sequence) {
  if (completed() >= sequence) return;
  std::unique_lock lock(mutex_);
  while (completed() < sequence) {
    awaited_ = std::min(awaited_, sequence);
    finished_.wait(lock);
  }
}

void Timeline::wait_for_room() {
  const std::uint64_t queued_before = submitted();
  if (queued_before >= kMostQueued) wait(queued_before - kMostQueued + 1);
}

void Timeline::close() {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
  arrived_.notify_one();
}

void Timeline::start() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals of the program are for its own threads
  std::thread([self = shared_from_this()] { self->work(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  started_ = true;
}

void Timeline::work() {
  stream_thread = true;
  std::uint64_t random = config().seed * 0x2545f4914f6cdd1dULL + id_;
  for (;;) {
    Work next;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    for (const Point& point : next.after) point.wait();
    delay(random);
    perform(next);
    std::unique_lock lock(mutex_);
    std::uint64_t done = 1;
    for (; !queue_.empty() && can_pass(queue_.front()); ++done) {
      perform(queue_.front());
      queue_.pop_front();
    }
    completed_.fetch_add(done, std::memory_order_acq_rel);
    if (completed() < awaited_) continue;
    awaited_ = kNone;  // threads that wait for later work say so again
    lock.unlock();
    finished_.notify_all();
  }
}

}  // namespace simcuda
