// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/reorder.h"

#include <algorithm>
#include <set>

#include "plan/steps/steady_state.h"

namespace stalloc::plan {
namespace {

// Finds the maximum of `places` in [from, to), for descending `from`. It keeps a stack of the places that are larger
// than all places between them and `from`; the nearest is on top.
class LargestAhead {
 public:
  explicit LargestAhead(const std::vector<std::size_t>& places) : places_(places) {}

  void add(std::size_t at) {
    while (!records_.empty() && places_[records_.back()] < places_[at]) records_.pop_back();
    records_.push_back(at);
  }
  [[nodiscard]] std::size_t before(std::size_t to) const {
    const auto first =
        std::partition_point(records_.begin(), records_.end(), [to](std::size_t at) { return at >= to; });
    return places_[*first];
  }

 private:
  const std::vector<std::size_t>& places_;
  std::vector<std::size_t> records_;  // descending
};

}  // namespace

Problem reorder(const Problem& problem, const std::vector<std::size_t>& order) {
  const std::vector<Request>& requests = problem.requests;
  std::vector<std::size_t> made(order);  // in the recorded order
  std::sort(made.begin(), made.end());
  std::vector<std::size_t> place_of(requests.size(), kNone);
  for (std::size_t place = 0; place < order.size(); ++place) place_of[order[place]] = place;
  std::vector<std::size_t> places;  // of `made`
  std::vector<std::size_t> ends;    // of each, the first of `made` that was made after it was freed
  places.reserve(made.size());
  ends.reserve(made.size());
  for (const std::size_t request : made) {
    places.push_back(place_of[request]);
    const auto end = std::lower_bound(made.begin(), made.end(), requests[request].until);
    ends.push_back(std::max(static_cast<std::size_t>(end - made.begin()), places.size()));
  }

  Problem result{problem.device, problem.granularity, problem.repeats, {}, problem.by_threads};
  result.requests.resize(order.size());
  LargestAhead made_while_live(places);
  for (std::size_t i = made.size(); i-- > 0;) {
    made_while_live.add(i);
    Request& request = result.requests[places[i]] = requests[made[i]];
    if (request.until != kNever) request.until = made_while_live.before(ends[i]) + 1;
  }

  std::set<std::size_t> live;
  std::vector<std::vector<std::size_t>> freed(made.size() + 1);
  for (std::size_t i = 0; i < made.size(); ++i) {
    for (const std::size_t place : freed[i]) live.erase(place);
    live.insert(places[i]);
    freed[ends[i]].push_back(places[i]);
    Request& request = result.requests[places[i]];
    if (request.until != kNever) request.until = std::max<std::uint64_t>(request.until, *live.rbegin() + 1);
  }

  for (std::size_t place = 0; place < order.size(); ++place) {
    Request& request = result.requests[place];
    request.lower = place;
    request.upper = std::min<std::uint64_t>(request.until, order.size());
  }
  return result;
}

}  // namespace stalloc::plan
