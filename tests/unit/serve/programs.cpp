// SPDX-License-Identifier: Apache-2.0
#include "programs.h"

#include <algorithm>

#include "host_memory.h"

namespace stalloc::test {

std::vector<ProgramRequest> random_requests(std::size_t count, Random& random) {
  std::vector<ProgramRequest> requests(count);
  for (ProgramRequest& request : requests) {
    const std::uint64_t largest = random() % 4 == 0 ? 4 * kPage : random() % 2 == 0 ? kPage / 2 : 4096;
    request = {random() % largest + 1, static_cast<std::uint32_t>(random() % 12 + 1), random() % 4};
  }
  return requests;
}

plan::DevicePlan plan_for(const std::vector<ProgramRequest>& requests, Random& random) {
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

template <class Call>
auto Program::with_little_memory(Call call) {
  if (one_without_memory_of_ > 0 && random_() % one_without_memory_of_ == 0) allocations_left = random_() % 12 + 1;
  const auto result = call();
  allocations_left = 0;
  return result;
}

void Program::request(const ProgramRequest& wanted) {
  ++now_;
  give_back_the_dead();
  if (!deviates_) return serve(wanted);
  if (random_() % 20 == 0) return;  // the planned request is not made
  if (random_() % 20 == 0) serve({random_() % kPage + 1, 3, random_()});
  serve(wanted);
  if (random_() % 4 == 0) driver_->work(any_stream());
  if (drops_ && random_() % 4 == 0) drop_and_ask_again(wanted);
}

void Program::serve(const ProgramRequest& wanted) {
  const StreamKey stream = deviates_ && random_() % 10 == 0 ? any_stream() : streams_[wanted.stream % streams_.size()];
  const bool for_all = deviates_ && random_() % 16 == 0;
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

void Program::drop_and_ask_again(ProgramRequest wanted) {
  if (live_.empty() || !give_back(live_.back())) return;
  wanted.bytes = live_.back().bytes;
  if (random_() % 2 == 0) wanted.stream = random_();
  live_.pop_back();
  serve(wanted);
}

void Program::give_back_the_dead() {
  for (std::size_t i = 0; i < live_.size();) {
    if (live_[i].until > now_ || !give_back(live_[i])) {
      ++i;
      continue;
    }
    live_[i] = live_.back();
    live_.pop_back();
  }
}

bool Program::give_back(const Live& live) {
  if (deviates_ && random_() % 16 == 0) return give_back_synchronously(live);
  if (deviates_ && !live.for_all && random_() % 8 == 0) return give_back_while_used(live);
  if (deviates_ && random_() % 16 == 0) return give_back_when_complete(live);
  moments_.push_back({driver_->work(live.stream)});
  const StreamKey stream = deviates_ && random_() % 8 == 0 ? hand_over(live.stream) : live.stream;
  moments_.back().push_back(driver_->work(stream));
  shadow_->give(live.address, live.bytes, &moments_.back());
  if (with_little_memory([&] { return heap_->free_async(live.address, stream); }) == CUDA_SUCCESS) return true;
  shadow_->keep(live.address, live.bytes, &moments_.back());
  return false;
}

bool Program::give_back_while_used(const Live& live) {
  const auto owner = std::find(streams_.begin(), streams_.end(), live.stream);
  const StreamKey user = any_stream();
  moments_.push_back({driver_->work(live.stream), driver_->work(user)});
  shadow_->give(live.address, live.bytes, &moments_.back(), user == live.stream ? nullptr : &*owner);
  if (with_little_memory([&] { return heap_->free_with_user(live.address, live.stream, user); }) == CUDA_SUCCESS)
    return true;
  shadow_->keep(live.address, live.bytes, &moments_.back());
  return false;
}

bool Program::give_back_when_complete(const Live& live) {
  driver_->work(live.stream);
  const StreamKey stream = hand_over(live.stream);
  moments_.push_back({driver_->work(stream)});
  shadow_->give(live.address, live.bytes, &moments_.back());
  if (with_little_memory([&] { return heap_->free_when_complete(live.address, stream, live.stream); }) == CUDA_SUCCESS)
    return true;
  shadow_->keep(live.address, live.bytes, &moments_.back());
  return false;
}

bool Program::give_back_synchronously(const Live& live) {
  moments_.emplace_back();
  for (const StreamKey& stream : streams_) moments_.back().push_back(driver_->work(stream));
  if (!live.for_all) driver_->finish_all_work();  // CUDA requires that no work uses the memory of a pool
  shadow_->give(live.address, live.bytes, &moments_.back());
  with_little_memory([&] { return heap_->free_sync(live.address); });
  return true;
}

StreamKey Program::hand_over(const StreamKey& stream) {
  const StreamKey other = any_stream();
  CUevent event = nullptr;
  const bool ordered = driver_->create_event(&event) == CUDA_SUCCESS &&
                       driver_->record_event(event, stream.handle) == CUDA_SUCCESS &&
                       driver_->wait_event(other.handle, event) == CUDA_SUCCESS;
  if (event != nullptr) driver_->destroy_event(event);
  return ordered ? other : stream;
}

std::vector<StreamKey> new_streams(FakeDriver& driver, std::size_t count) {
  std::vector<StreamKey> streams;
  while (streams.size() < count) streams.push_back({driver.new_stream(), 0});
  return streams;
}

}  // namespace stalloc::test
