// SPDX-License-Identifier: Apache-2.0
// Random programs of requests, work on several streams, and frees, which deviate from a plan. Every byte that they are
// served is checked against a record of their own (shadow.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "fake_driver.h"
#include "host_memory.h"
#include "interpose/serve/heap/heap.h"
#include "plans.h"
#include "shadow.h"

namespace stalloc::test {

using serve::Heap;
using stalloc::StreamKey;

using Random = std::mt19937_64;

struct ProgramRequest {
  std::uint64_t bytes = 0;
  std::uint32_t lifetime = 0;  // in requests
  std::size_t stream = 0;
};

inline std::vector<ProgramRequest> random_requests(std::size_t count, Random& random) {
  std::vector<ProgramRequest> requests(count);
  for (ProgramRequest& request : requests) {
    const std::uint64_t largest = random() % 4 == 0 ? 4 * kPage : random() % 2 == 0 ? kPage / 2 : 4096;
    request = {random() % largest + 1, static_cast<std::uint32_t>(random() % 12 + 1), random() % 4};
  }
  return requests;
}

inline plan::DevicePlan plan_for(const std::vector<ProgramRequest>& requests, Random& random) {
  std::vector<std::uint64_t> handles(16);
  for (std::uint64_t& pages : handles) pages = random() % 3 + 1;
  plan::DevicePlan plan = plan_of_handles(handles);
  NaivePlacer placer(&plan);
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    placer.place(requests[i].bytes, i, i + requests[i].lifetime, random);
    plan.slots.back().event_on_free = random() % 3 == 0;
  }
  plan.prologue = static_cast<std::uint32_t>(random() % (requests.size() / 3));
  plan.body = static_cast<std::uint32_t>(requests.size() / 2);
  // Some slots are marked as living through the body, whether or not they do.
  for (std::uint32_t i = 0; i < plan.prologue; ++i) {
    if (random() % 4 == 0) plan.slots[i].upper = requests.size();
  }
  return plan;
}

struct Live {
  CUdeviceptr address = 0;
  std::uint64_t bytes = 0;
  StreamKey stream;
  std::uint64_t until = 0;
  bool for_all = false;  // served by cuMemAlloc, for all streams
};

// The part of a program on one thread: requests, work and frees on its streams.
class Program {
 public:
  Program(FakeDriver* driver, Heap* heap, Shadow* shadow, std::vector<StreamKey> streams, std::uint64_t seed)
      : driver_(driver), heap_(heap), shadow_(shadow), streams_(std::move(streams)), random_(seed) {}

  void request(const ProgramRequest& wanted) {
    ++now_;
    give_back_the_dead();
    if (!deviates_) return serve(wanted);
    if (random_() % 20 == 0) return;  // the planned request is not made
    if (random_() % 20 == 0) serve({random_() % kPage + 1, 3, random_()});
    serve(wanted);
    if (random_() % 4 == 0) driver_->work(any_stream());
    if (drops_ && random_() % 4 == 0) drop_and_ask_again(wanted);
  }

  // Frees what ends before the next request.
  void end_step() {
    ++now_;
    give_back_the_dead();
  }
  void finish() {
    now_ += 1000;
    give_back_the_dead();
  }

  StreamKey& any_stream() { return streams_[random_() % streams_.size()]; }
  const std::vector<StreamKey>& streams() const { return streams_; }
  const std::vector<Live>& live() const { return live_; }
  std::size_t served() const { return served_; }
  std::size_t refused() const { return refused_; }
  void allow_synchronous(bool allowed) { synchronous_ = allowed; }
  // From now on, some requests are freed at once and made again.
  void drop_some() { drops_ = true; }
  // From now on, the host runs out of memory in one of so many calls of the heap; 0: in none.
  void run_out_of_host_memory(std::uint64_t one_of) { one_without_memory_of_ = one_of; }
  // Without deviations, exactly the given requests are made, and each is freed on its stream after its lifetime.
  void allow_deviations(bool allowed) { deviates_ = allowed; }

 private:
  // Calls the heap, perhaps while the host runs out of memory.
  template <class Call>
  auto with_little_memory(Call call) {
    if (one_without_memory_of_ > 0 && random_() % one_without_memory_of_ == 0) allocations_left = random_() % 12 + 1;
    const auto result = call();
    allocations_left = 0;
    return result;
  }

  void serve(const ProgramRequest& wanted) {
    const StreamKey stream =
        deviates_ && random_() % 10 == 0 ? any_stream() : streams_[wanted.stream % streams_.size()];
    const bool for_all = deviates_ && synchronous_ && random_() % 16 == 0;
    const auto address = with_little_memory(
        [&] { return for_all ? heap_->allocate_sync(wanted.bytes) : heap_->allocate(wanted.bytes, stream, nullptr); });
    if (!address) ++refused_;
    if (!address) return;
    ++served_;
    shadow_->take(*address, wanted.bytes, for_all ? streams_ : std::vector<StreamKey>{stream});
    const std::uint64_t late = deviates_ && random_() % 10 == 0 ? random_() % 30 : 0;
    live_.push_back({*address, wanted.bytes, stream, now_ + wanted.lifetime + late, for_all});
    driver_->work(stream);
  }

  void drop_and_ask_again(ProgramRequest wanted) {
    if (live_.empty() || !give_back(live_.back())) return;
    wanted.bytes = live_.back().bytes;
    if (random_() % 2 == 0) wanted.stream = random_();
    live_.pop_back();
    serve(wanted);
  }

  void give_back_the_dead() {
    for (std::size_t i = 0; i < live_.size();) {
      if (live_[i].until > now_ || !give_back(live_[i])) {
        ++i;
        continue;
      }
      live_[i] = live_.back();
      live_.pop_back();
    }
  }

  bool give_back(const Live& live) {
    if (deviates_ && synchronous_ && random_() % 16 == 0) return give_back_synchronously(live);
    if (deviates_ && !live.for_all && random_() % 8 == 0) return give_back_while_used(live);
    if (deviates_ && random_() % 16 == 0) return give_back_when_complete(live);
    moments_.push_back({driver_->work(live.stream)});
    const StreamKey stream = deviates_ && random_() % 8 == 0 ? hand_over(live.stream) : live.stream;
    moments_.back().push_back(driver_->work(stream));
    shadow_->give(live.address, live.bytes, &moments_.back());
    if (with_little_memory([&] { return heap_->free_async(live.address, stream); }) == CUDA_SUCCESS) return true;
    shadow_->take(live.address, live.bytes, {});  // the free was refused, so the range is still live
    return false;
  }

  // Another stream works on the range; neither stream is ordered after the other.
  bool give_back_while_used(const Live& live) {
    const auto owner = std::find(streams_.begin(), streams_.end(), live.stream);
    const StreamKey user = any_stream();
    moments_.push_back({driver_->work(live.stream), driver_->work(user)});
    shadow_->give(live.address, live.bytes, &moments_.back(), user == live.stream ? nullptr : &*owner);
    if (with_little_memory([&] { return heap_->free_with_user(live.address, live.stream, user); }) == CUDA_SUCCESS)
      return true;
    shadow_->take(live.address, live.bytes, {});
    return false;
  }

  bool give_back_when_complete(const Live& live) {
    driver_->work(live.stream);
    const StreamKey stream = hand_over(live.stream);
    moments_.push_back({driver_->work(stream)});
    shadow_->give(live.address, live.bytes, &moments_.back());
    if (with_little_memory([&] { return heap_->free_when_complete(live.address, stream, live.stream); }) ==
        CUDA_SUCCESS)
      return true;
    shadow_->take(live.address, live.bytes, {});
    return false;
  }

  bool give_back_synchronously(const Live& live) {
    moments_.emplace_back();
    for (const StreamKey& stream : streams_) moments_.back().push_back(driver_->work(stream));
    if (!live.for_all) driver_->finish_all_work();  // CUDA requires that no work uses the memory of a pool
    shadow_->give(live.address, live.bytes, &moments_.back());
    with_little_memory([&] { return heap_->free_sync(live.address); });
    return true;
  }

  // Orders another stream of the program after `stream`, as CUDA requires before memory is freed there.
  StreamKey hand_over(const StreamKey& stream) {
    const StreamKey other = any_stream();
    CUevent event = nullptr;
    const bool ordered = driver_->create_event(&event) == CUDA_SUCCESS &&
                         driver_->record_event(event, stream.handle) == CUDA_SUCCESS &&
                         driver_->wait_event(other.handle, event) == CUDA_SUCCESS;
    if (event != nullptr) driver_->destroy_event(event);
    return ordered ? other : stream;
  }

  FakeDriver* driver_;
  Heap* heap_;
  Shadow* shadow_;
  std::vector<StreamKey> streams_;
  Random random_;
  std::vector<Live> live_;
  std::deque<Moments> moments_;
  std::uint64_t now_ = 0;
  std::size_t served_ = 0;
  std::size_t refused_ = 0;
  std::uint64_t one_without_memory_of_ = 0;
  bool synchronous_ = true;
  bool drops_ = false;
  bool deviates_ = true;
};

inline std::vector<StreamKey> new_streams(FakeDriver& driver, std::size_t count) {
  std::vector<StreamKey> streams;
  while (streams.size() < count) streams.push_back({driver.new_stream(), 0});
  return streams;
}

// Makes the requests of the plan with small deviations, and repeats the body several times.
template <class EachStep>
void run(Program& program, const std::vector<ProgramRequest>& requests, const plan::DevicePlan& plan, int repetitions,
         EachStep each_step) {
  for (std::size_t i = 0; i < plan.prologue; ++i) program.request(requests[i]), each_step();
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (std::size_t i = plan.prologue; i < plan.prologue + plan.body; ++i) program.request(requests[i]), each_step();
  }
  for (std::size_t i = plan.prologue + plan.body; i < requests.size(); ++i) program.request(requests[i]), each_step();
}

}  // namespace stalloc::test
