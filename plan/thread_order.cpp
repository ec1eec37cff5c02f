#include "plan/thread_order.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "plan/reorder.h"
#include "plan/sequence.h"
#include "plan/steady_state.h"
#include "plan/thread_places.h"

namespace stalloc::plan {
namespace {

using Order = std::vector<std::size_t>;  // indices of requests

constexpr std::size_t kMostSteps = 4;       // of the leader in a repetition of another thread
constexpr std::uint64_t kTolerance = 1000;  // one part in so many of the peak may be lost to longer lives

// The requests of each thread; those with the most first, and no more threads than there may be lanes.
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

class Merger {
 public:
  Merger(const Problem& problem, const std::vector<std::uint32_t>& tokens)
      : problem_(problem), tokens_(tokens), threads_(requests_by_thread(problem)) {}

  std::optional<ThreadOrder> run() {
    if (threads_.size() < 2) return std::nullopt;
    order_ = threads_.front();
    run_ = find_run(order_);
    if (run_.period == 0) return std::nullopt;
    leaders_ = run_.end - run_.begin;
    std::vector<const Order*> strays;
    for (std::size_t i = 1; i < threads_.size(); ++i) {
      if (!add_as_recorded(threads_[i])) strays.push_back(&threads_[i]);
    }
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

  // Takes `order` if (nearly) all that repeats of the leader does so in it too.
  bool accept(Order order) {
    const Run run = find_run(order);
    const std::uint32_t leader = problem_.requests[threads_.front().front()].thread;
    const auto at = [&](std::size_t place) { return order.begin() + static_cast<std::ptrdiff_t>(place); };
    const auto leaders = static_cast<std::size_t>(std::count_if(
        at(run.begin), at(run.end), [&](std::size_t request) { return problem_.requests[request].thread == leader; }));
    if (4 * leaders < 3 * leaders_) return false;
    order_ = std::move(order);
    run_ = run;
    return true;
  }

  bool add_as_recorded(const Order& thread) {
    Order both;
    std::merge(order_.begin(), order_.end(), thread.begin(), thread.end(), std::back_inserter(both));
    return accept(std::move(both));
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
      if (!places) continue;
      Order merged = merge_at(thread, *places);
      if (keeps_peak(merged) && accept(std::move(merged))) return;
    }
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

  [[nodiscard]] bool keeps_peak(const Order& order) const {
    Order recorded = order;
    std::sort(recorded.begin(), recorded.end());
    const std::uint64_t peak = peak_live_bytes(reorder(problem_, recorded));
    return peak_live_bytes(reorder(problem_, order)) <= peak + peak / kTolerance;
  }

  ThreadOrder finish() const {
    ThreadOrder result{reorder(problem_, order_), std::vector<std::size_t>(problem_.requests.size(), kNone), {}};
    std::map<std::uint32_t, std::uint8_t> lanes;
    for (std::size_t place = 0; place < order_.size(); ++place) {
      result.position[order_[place]] = place;
      const std::uint32_t thread = problem_.requests[order_[place]].thread;
      result.lanes.push_back(lanes.try_emplace(thread, static_cast<std::uint8_t>(lanes.size())).first->second);
    }
    return result;
  }

  const Problem& problem_;
  const std::vector<std::uint32_t>& tokens_;
  const std::vector<Order> threads_;
  Order order_;              // so far
  Run run_;                  // that repeats in it
  std::size_t leaders_ = 0;  // requests of the leader that repeat
};

}  // namespace

std::optional<ThreadOrder> order_by_threads(const Problem& problem, const std::vector<std::uint32_t>& tokens) {
  return Merger(problem, tokens).run();
}

}  // namespace stalloc::plan
