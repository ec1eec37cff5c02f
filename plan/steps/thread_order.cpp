// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/thread_order.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "plan/steps/reorder.h"
#include "plan/steps/steady_state.h"
#include "plan/steps/thread_places.h"

namespace stalloc::plan {
namespace {

using Order = std::vector<std::size_t>;  // indices of requests

constexpr std::size_t kMostSteps = 4;  // of the leader in a repetition of another thread

// The requests of each thread, the thread with the most first; no more threads than there may be lanes.
std::vector<Order> requests_by_thread(const Problem& problem) {
  std::map<std::uint32_t, Order> by_thread;
  for (std::size_t i = 0; i < problem.requests.size(); ++i) by_thread[problem.requests[i].thread].push_back(i);
  std::vector<Order> threads;
  threads.reserve(by_thread.size());
  for (auto& [thread, requests] : by_thread) threads.push_back(std::move(requests));
  std::stable_sort(threads.begin(), threads.end(), [](const Order& a, const Order& b) { return a.size() > b.size(); });
  if (threads.size() > kMostLanes) threads.resize(kMostLanes);
  return threads;
}

// The cost of an order of requests.
struct Cost {
  std::uint64_t recorded = 0;  // peak of live bytes in the recorded order
  std::uint64_t planned = 0;   // the same where each request of the body lives for the longest of all repetitions
};

Cost cost_of(const Problem& recorded, const Order& order, Problem ordered, const SteadyState& steady) {
  Order made = order;
  std::sort(made.begin(), made.end());
  for (std::size_t i = steady.begin; i < steady.end(); ++i) {
    const std::uint64_t life = steady.lives[(i - steady.begin) % steady.period];
    std::uint64_t& until = ordered.requests[i].until;
    if (until != kNever && life != kNever) until = std::max(until, i + life);
  }
  return {peak_live_bytes(reorder(recorded, made)), peak_live_bytes(ordered)};
}

class Merger {
 public:
  Merger(const Problem& problem, RequestKey key)
      : problem_(problem),
        key_(key),
        tokens_(tokens_of(problem.requests, key, true)),
        threads_(requests_by_thread(problem)) {}

  std::optional<ThreadOrder> run() {
    if (threads_.size() < 2 || tokens_.empty()) return std::nullopt;
    order_ = threads_.front();
    run_ = find_run(order_);
    if (run_.period == 0) return std::nullopt;
    leaders_ = leaders_in(order_, run_);
    std::vector<const Order*> strays;
    for (std::size_t i = 1; i < threads_.size(); ++i) {
      if (!add_as_recorded(threads_[i])) strays.push_back(&threads_[i]);
    }
    const Problem ordered = problem_in(order_);
    cost_ = cost_of(problem_, order_, ordered, find_steady_state(ordered, key_));
    for (const Order* thread : strays) add_moved(*thread);
    return finish();
  }

 private:
  Run find_run(const Order& order) const {
    std::vector<std::uint32_t> tokens;
    tokens.reserve(order.size());
    for (const std::size_t request : order) tokens.push_back(tokens_[request]);
    return find_longest_run(tokens);
  }

  [[nodiscard]] Problem problem_in(const Order& order) const {
    Problem ordered = reorder(problem_, order);
    ordered.by_threads = true;
    return ordered;
  }

  // The leader's requests in a stretch of `order`.
  [[nodiscard]] std::size_t leaders_in(const Order& order, const Run& run) const {
    const std::uint32_t leader = problem_.requests[threads_.front().front()].thread;
    const auto at = [&](std::size_t place) { return order.begin() + static_cast<std::ptrdiff_t>(place); };
    return static_cast<std::size_t>(std::count_if(
        at(run.begin), at(run.end), [&](std::size_t request) { return problem_.requests[request].thread == leader; }));
  }

  // True when (nearly) all of the leader's repeating requests repeat in `order`, too.
  [[nodiscard]] bool repeats(const Order& order, const Run& run) const {
    return 4 * leaders_in(order, run) >= 3 * leaders_;
  }

  bool add_as_recorded(const Order& thread) {
    Order both;
    std::merge(order_.begin(), order_.end(), thread.begin(), thread.end(), std::back_inserter(both));
    const Run run = find_run(both);
    if (!repeats(both, run)) return false;
    order_ = std::move(both);
    run_ = run;
    return true;
  }

  void add_moved(const Order& thread) {
    Order made = order_;
    std::sort(made.begin(), made.end());
    std::vector<std::int64_t> made_at;
    std::vector<std::uint32_t> tokens;
    for (const std::size_t request : thread) {
      made_at.push_back(std::lower_bound(made.begin(), made.end(), request) - made.begin());
      tokens.push_back(tokens_[request]);
    }
    for (std::size_t steps = 1; steps <= kMostSteps; ++steps) {
      const auto places = find_places(made_at, tokens, run_, steps);
      if (places && accept(merge_at(thread, *places))) return;
    }
  }

  bool accept(Order order) {
    const Problem ordered = problem_in(order);
    const SteadyState steady = find_steady_state(ordered, key_);
    if (steady.period == 0) return false;
    const Run run{steady.run_begin, steady.run_end, steady.period / steady.unrolled};
    if (!repeats(order, run)) return false;
    const Cost cost = cost_of(problem_, order, ordered, steady);
    if (cost.planned + cost_.recorded > cost_.planned + cost.recorded + cost.recorded / kPeakTolerance) return false;
    order_ = std::move(order);
    run_ = run;
    cost_ = cost;
    return true;
  }

  [[nodiscard]] Order merge_at(const Order& thread, const std::vector<std::int64_t>& places) const {
    Order merged;
    merged.reserve(order_.size() + thread.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i <= order_.size(); ++i) {
      const bool end = i == order_.size();
      while (next < thread.size() && (end || places[next] <= static_cast<std::int64_t>(i))) {
        merged.push_back(thread[next++]);
      }
      if (!end) merged.push_back(order_[i]);
    }
    return merged;
  }

  ThreadOrder finish() const {
    ThreadOrder result{problem_in(order_), std::vector<std::size_t>(problem_.requests.size(), kNone), {}};
    std::map<std::uint32_t, std::uint8_t> lanes;
    for (std::size_t place = 0; place < order_.size(); ++place) {
      result.position[order_[place]] = place;
      const std::uint32_t thread = problem_.requests[order_[place]].thread;
      result.lanes.push_back(lanes.try_emplace(thread, static_cast<std::uint8_t>(lanes.size())).first->second);
    }
    return result;
  }

  const Problem& problem_;
  const RequestKey key_;
  const std::vector<std::uint32_t> tokens_;
  const std::vector<Order> threads_;
  Order order_;              // so far
  Run run_;                  // that repeats in it
  Cost cost_;                // of it
  std::size_t leaders_ = 0;  // requests of the leader that repeat
};

}  // namespace

std::optional<ThreadOrder> order_by_threads(const Problem& problem, RequestKey key) {
  return Merger(problem, key).run();
}

}  // namespace stalloc::plan
