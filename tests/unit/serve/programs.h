// SPDX-License-Identifier: Apache-2.0
// Random programs of requests, work on several streams, and frees, which deviate from a plan. Every byte that they are
// served is checked against a record of their own (shadow.h).
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "fake_driver.h"
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

std::vector<ProgramRequest> random_requests(std::size_t count, Random& random);
plan::DevicePlan plan_for(const std::vector<ProgramRequest>& requests, Random& random);

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

  void request(const ProgramRequest& wanted);

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
  // From now on, some requests are freed at once and made again.
  void drop_some() { drops_ = true; }
  // From now on, the host runs out of memory in one of so many calls of the heap; 0: in none.
  void run_out_of_host_memory(std::uint64_t one_of) { one_without_memory_of_ = one_of; }
  // Without deviations, exactly the given requests are made, and each is freed on its stream after its lifetime.
  void allow_deviations(bool allowed) { deviates_ = allowed; }

 private:
  // Calls the heap, perhaps while the host runs out of memory.
  template <class Call>
  auto with_little_memory(Call call);
  void serve(const ProgramRequest& wanted);
  void drop_and_ask_again(ProgramRequest wanted);
  void give_back_the_dead();
  bool give_back(const Live& live);
  // Another stream works on the range; neither stream is ordered after the other.
  bool give_back_while_used(const Live& live);
  bool give_back_when_complete(const Live& live);
  bool give_back_synchronously(const Live& live);
  // Orders another stream of the program after `stream`, as CUDA requires before memory is freed there.
  StreamKey hand_over(const StreamKey& stream);

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
  bool drops_ = false;
  bool deviates_ = true;
};

std::vector<StreamKey> new_streams(FakeDriver& driver, std::size_t count);

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
