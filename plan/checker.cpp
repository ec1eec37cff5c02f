// SPDX-License-Identifier: Apache-2.0
#include "plan/checker.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "plan/sequence/slot_match.h"

namespace stalloc::plan {
namespace {

struct Bytes {
  std::uint64_t first;
  std::uint64_t last;  // exclusive
};

// The slot that holds a byte range, or held it last.
struct Holder {
  std::uint64_t last;  // exclusive end of the range
  std::size_t slot;
  std::uint32_t free_stream;
};

// One request to be replayed. It is freed before request `until` is made.
struct PlayedRequest {
  std::size_t slot;
  std::uint64_t until;
  std::uint32_t allocation_stream;
  std::uint32_t free_stream;

  // cudaFree of stream-ordered memory waits for nothing, so its bytes stay ordered after the frees before it was made.
  [[nodiscard]] bool keeps_order() const { return free_stream == kEveryStream && allocation_stream != kEveryStream; }
};

class Checker {
 public:
  Checker(const Problem& problem, const DevicePlan& plan) : problem_(problem), plan_(plan) {
    std::uint64_t at = 0;
    for (const std::uint64_t bytes : plan.handles) {
      handle_at_.push_back(at);
      at += bytes;
    }
    for (const View& view : plan.views) {
      std::uint64_t begin = 0;
      std::vector<std::uint64_t>& begins = begins_.emplace_back();
      for (const std::uint32_t handle : view.handles) {
        begins.push_back(begin);
        begin += plan.handles[handle];
      }
    }
    for (const Wait& wait : plan.waits) waits_.emplace(wait.slot, wait.freed);
  }

  std::string run() {
    auto matched = match_slots(problem_, plan_);
    if (!matched.ok()) return matched.error;
    slots_ = std::move(matched.value);
    if (std::string error = compare_slots(); !error.empty()) return error;
    std::vector<PlayedRequest> recorded;
    for (std::size_t i = 0; i < problem_.requests.size(); ++i) {
      const Request& request = problem_.requests[i];
      recorded.push_back({slots_[i], request.until, request.allocation_stream, request.free_stream});
    }
    if (std::string error = play(recorded); !error.empty()) return error;
    if (std::string error = compare_lives(); !error.empty()) return error;
    if (plan_.body == 0) return {};
    if (std::string error = play(repeated()); !error.empty()) return error + " (when the body repeats)";
    return {};
  }

 private:
  // Compares every request with its slot.
  std::string compare_slots() {
    std::vector<bool> seen(plan_.slots.size(), false);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i] == kNoSlot) continue;
      const bool first = !seen[slots_[i]];
      if (std::string error = compare(problem_.requests[i], slots_[i], first); !error.empty()) return error;
      seen[slots_[i]] = true;
    }
    return {};
  }

  std::string compare(const Request& request, std::size_t index, bool first) const {
    const Slot& slot = plan_.slots[index];
    const std::string name = "request " + std::to_string(request.id);
    if (first && slot.id != request.id) return name + " has a slot of id " + std::to_string(slot.id);
    if (slot.kind == SlotKind::PassThrough) return {};
    if (slot.stream != request.stream) return name + " has a slot of another stream";
    if (request.pass != PassReason::None) return name + " must be passed through and has a place";
    if (slot.size < request.size) return name + " has a slot that is too small";
    const bool exact = slot.kind == SlotKind::Dynamic || slot.size / 512 == request.size / 512 ||
                       (slot.size + 511) / 512 == (request.size + 511) / 512;
    if (!exact) return name + " has a slot of another size";
    if (slot.offset % 512 != 0) return name + " is not aligned";
    if (slot.view >= plan_.views.size()) return name + " lies in a view that does not exist";
    const std::uint64_t view = plan_.views[slot.view].bytes;
    if (slot.size > view || slot.offset > view - slot.size) return name + " ends outside its view";
    return {};
  }

  // Compares the time at which each slot ends, which others rely on, with that of its requests.
  [[nodiscard]] std::string compare_lives() const {
    if (!plan_.lanes.empty()) return {};
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Request& request = problem_.requests[i];
      const Slot& slot = plan_.slots[slots_[i]];
      const std::string name = "request " + std::to_string(request.id);
      if (!problem_.repeats && (slot.lower != request.lower || slot.upper != request.upper)) {
        return name + " has a slot of another lifetime";
      }
      if (!problem_.repeats || slot.kind == SlotKind::PassThrough || slot.upper >= end_in_slots(i)) continue;
      return name + " has a slot that ends at " + std::to_string(slot.upper) + ", before it is freed at " +
             std::to_string(end_in_slots(i));
    }
    return {};
  }

  // Returns the earliest time, in slots, at which the slot of this request may end. Nothing is said of what happens to
  // a request of the body after the last repetition. Pre: the problem repeats, and there are no lanes.
  [[nodiscard]] std::uint64_t end_in_slots(std::size_t request) const {
    const std::uint64_t until = problem_.requests[request].until;
    const std::uint64_t body_end = std::uint64_t{plan_.prologue} + plan_.body;
    const std::uint64_t skipped = problem_.requests.size() - plan_.slots.size();  // of all repetitions but one
    const std::size_t slot = slots_[request];
    if (slot >= plan_.prologue && slot < body_end) return slot + std::min(until, body_end + skipped) - request;
    if (until <= body_end + skipped) return std::min(until, body_end);
    return until == kNever ? plan_.slots.size() : until - skipped;
  }

  // Returns the requests of the prologue and of three repetitions of the body, with the plan's own lifetimes.
  [[nodiscard]] std::vector<PlayedRequest> repeated() const {
    std::vector<std::uint32_t> allocation_stream(plan_.slots.size());
    std::vector<std::uint32_t> free_stream(plan_.slots.size());
    for (std::size_t i = problem_.requests.size(); i-- > 0;) {  // the first repetition wins
      if (slots_[i] == kNoSlot) continue;
      allocation_stream[slots_[i]] = problem_.requests[i].allocation_stream;
      free_stream[slots_[i]] = problem_.requests[i].free_stream;
    }
    std::vector<PlayedRequest> requests;
    const std::size_t body_end = plan_.prologue + plan_.body;
    for (std::size_t repetition = 0; repetition < 3; ++repetition) {
      for (std::size_t s = repetition == 0 ? 0 : plan_.prologue; s < body_end; ++s) {
        const bool stays = s < plan_.prologue && plan_.slots[s].upper >= body_end;
        const std::uint64_t until = stays ? kNever : plan_.slots[s].upper + repetition * plan_.body;
        requests.push_back({s, until, allocation_stream[s], free_stream[s]});
      }
    }
    return requests;
  }

  // Returns the physical byte ranges of a slot, whose size is rounded up to 512. Ranges that touch are joined.
  [[nodiscard]] std::vector<Bytes> physical(std::size_t index) const {
    std::vector<Bytes> result;
    if (index == kNoSlot) return result;
    const Slot& slot = plan_.slots[index];
    if (slot.kind == SlotKind::PassThrough || slot.size == 0) return result;
    const std::uint64_t begin = slot.offset;
    const std::uint64_t end = slot.offset + (slot.size + 511) / 512 * 512;
    const std::vector<std::uint64_t>& begins = begins_[slot.view];
    const auto holding = std::upper_bound(begins.begin(), begins.end(), begin);
    for (std::size_t i = holding - begins.begin() - 1; i < begins.size() && begins[i] < end; ++i) {
      const std::uint32_t handle = plan_.views[slot.view].handles[i];
      const std::uint64_t at = handle_at_[handle];
      const Bytes piece{at + std::max(begins[i], begin) - begins[i],
                        at + std::min(begins[i] + plan_.handles[handle], end) - begins[i]};
      if (!result.empty() && result.back().last == piece.first) {
        result.back().last = piece.last;
      } else {
        result.push_back(piece);
      }
    }
    return result;
  }

  std::string play(const std::vector<PlayedRequest>& requests) {
    live_.clear();
    freed_.clear();
    before_.clear();
    pages_with_frees_.clear();
    std::multimap<std::uint64_t, std::size_t> ends;  // by `until`: the index in `requests`
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (; !ends.empty() && ends.begin()->first <= i; ends.erase(ends.begin()))
        release(requests[ends.begin()->second]);
      for (const Bytes& bytes : physical(requests[i].slot)) {
        if (std::string error = take(bytes, requests[i]); !error.empty()) return error;
      }
      ends.emplace(requests[i].until, i);
    }
    return {};
  }

  std::string take(const Bytes& bytes, const PlayedRequest& request) {
    const auto name = [this](std::size_t slot) { return "request " + std::to_string(plan_.slots[slot].id); };
    if (request.allocation_stream == kEveryStream && (has_frees(bytes.first) || has_frees(bytes.last - 1))) {
      return name(request.slot) + " may be used on any stream and shares a page with bytes freed on one";
    }
    const auto after = live_.lower_bound(bytes.first);
    for (auto at = after == live_.begin() ? after : std::prev(after); at != live_.end() && at->first < bytes.last;
         ++at) {
      if (at->second.last > bytes.first) {
        return name(request.slot) + " takes bytes that " + name(at->second.slot) + " still holds (physical offset " +
               std::to_string(std::max(bytes.first, at->first)) + ")";
      }
    }
    auto before = freed_.lower_bound(bytes.first);
    if (before != freed_.begin()) --before;
    for (auto at = before; at != freed_.end() && at->first < bytes.last;) {
      const Bytes old{at->first, at->second.last};
      const Holder holder = at->second;
      if (old.last <= bytes.first) {
        ++at;
        continue;
      }
      if (std::string error = check_order(request, holder); !error.empty()) return name(request.slot) + error;
      at = freed_.erase(at);
      const Bytes taken{std::max(old.first, bytes.first), std::min(old.last, bytes.last)};
      if (request.keeps_order()) {
        before_[bytes.first][taken.first] = {taken.last, holder.slot, holder.free_stream};
      }
      if (old.first < bytes.first) freed_[old.first] = {bytes.first, holder.slot, holder.free_stream};
      if (old.last > bytes.last) freed_[bytes.last] = holder;
    }
    live_[bytes.first] = {bytes.last, request.slot, request.free_stream};
    return {};
  }

  [[nodiscard]] std::string check_order(const PlayedRequest& request, const Holder& holder) const {
    if (holder.free_stream == kEveryStream || holder.free_stream == request.allocation_stream) return {};
    const std::string whose = "bytes of request " + std::to_string(plan_.slots[holder.slot].id);
    if (request.allocation_stream == kEveryStream)
      return " may be used on any stream and takes " + whose + ", freed on one";
    if (!waits_.contains({request.slot, holder.slot}))
      return " takes " + whose + ", freed on another stream, without a wait";
    const auto has_event = [this](std::size_t slot) { return plan_.slots[slot].event_on_free; };
    if (!has_event(holder.slot)) return " waits for " + whose + ", whose free records no event";
    if (may_be_in_body(holder.slot) && !has_event(holder.slot - plan_.body))
      return " waits for " + whose + ", whose free records no event where the body's slot serves it";
    return {};
  }

  // Whether a slot of the epilogue is one of the first, which request what the body begins with. A program that is
  // served may as well be in the body there.
  [[nodiscard]] bool may_be_in_body(std::size_t slot) const {
    const std::size_t body_end = std::size_t{plan_.prologue} + plan_.body;
    if (slot < body_end || slot >= body_end + plan_.body) return false;
    for (std::size_t at = body_end; at <= slot; ++at) {
      if ((plan_.slots[at].size + 511) / 512 != (plan_.slots[at - plan_.body].size + 511) / 512) return false;
    }
    return true;
  }

  void release(const PlayedRequest& request) {
    for (const Bytes& bytes : physical(request.slot)) {
      live_.erase(bytes.first);
      if (request.keeps_order()) {
        freed_.merge(before_[bytes.first]);
        before_.erase(bytes.first);
        continue;
      }
      freed_[bytes.first] = {bytes.last, request.slot, request.free_stream};
      if (request.free_stream == kEveryStream) continue;
      for (const std::uint64_t byte : {bytes.first, bytes.last - 1}) pages_with_frees_.insert(byte / plan_.granularity);
    }
  }

  // Whether a part of the byte's page was freed on a stream.
  [[nodiscard]] bool has_frees(std::uint64_t byte) const {
    return pages_with_frees_.contains(byte / plan_.granularity);
  }

  const Problem& problem_;
  const DevicePlan& plan_;
  std::vector<std::uint64_t> handle_at_;            // physical offset of each handle
  std::vector<std::vector<std::uint64_t>> begins_;  // by view: the offsets in the view at which its handles begin
  std::set<std::pair<std::size_t, std::size_t>> waits_;
  std::vector<std::size_t> slots_;                  // of each request; kNoSlot: none
  using Holders = std::map<std::uint64_t, Holder>;  // by the first byte
  Holders live_;
  Holders freed_;
  std::map<std::uint64_t, Holders>
      before_;  // by the first live byte: who freed the bytes of a request that keeps order
  std::set<std::uint64_t> pages_with_frees_;
};

}  // namespace

std::string find_unsoundness(const Problem& problem, const DevicePlan& plan) { return Checker(problem, plan).run(); }

}  // namespace stalloc::plan
