// SPDX-License-Identifier: Apache-2.0
// Which slot of the plan the next request takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/follow/plan_match.h"
#include "plan/plan.h"

namespace stalloc::plan {

// Follows the slots in the order of the recorded requests, and matches requests with slots by size:
//
//     prologue -> body -> body -> ... -> body -> epilogue
//                  ^_________|                       (body again after the epilogue)
//
// A slot of varying size matches the next request, whatever its size, so that the cursor keeps its position; a request
// that is larger than the slot is unplanned.
//
// A request that does not match is a deviation. It is unplanned, and the cursor keeps its position, since the request
// may be an extra one. The cursor moves when all requests since the deviation, two or more, match slots a little later
// (requests are missing) or a little earlier (an earlier move was wrong), or when the latest four requests match some
// other part of the plan.
//
// Takes constant time for a request that matches. Not thread-safe: the heap's lock protects it. Only the constructor
// throws.
class Cursor {
 public:
  enum class Answer : std::uint8_t {
    Serve,      // at the place of `slot`
    Original,   // by the original allocator, as the plan says
    Unplanned,  // dynamically: the plan has no slot for the request, or its slot has no place
  };
  struct Next {
    Answer answer = Answer::Unplanned;
    std::uint32_t slot = 0;  // only with Answer::Serve
  };
  // A request that differs from the plan.
  struct Difference {
    std::uint64_t request = 0;   // its number, from 1 on
    std::uint64_t bytes = 0;     // as requested
    std::uint64_t expected = 0;  // bytes of the next slot, rounded up to kUnitBytes; 0: the plan had ended
  };

  // Throws std::bad_alloc.
  explicit Cursor(const DevicePlan& plan);

  // Returns what the plan says about the program's next request, and moves the cursor. Pre: `bytes` > 0.
  Next next(std::uint64_t bytes) noexcept;
  // The program requests `bytes` bytes under stream capture; CUDA serves that, whatever the plan says. Moves the cursor
  // if the next slot is for such a request. It is no deviation otherwise.
  void pass_through(std::uint64_t bytes) noexcept;
  // The latest request was served at a slot out of order, so it says nothing about the position. At the next deviation,
  // the whole plan is not searched.
  void keep_place() noexcept { keeps_place_ = true; }
  // True if the plan has a body and it has not begun.
  [[nodiscard]] bool is_before_body() const noexcept { return at_ < body_begin_ && body_begin_ < body_end_; }

  // True if a request of this size would match now, without a deviation.
  [[nodiscard]] bool awaits(std::uint64_t bytes) const noexcept;
  // True if the first slot of the body matches a request of this size.
  [[nodiscard]] bool body_begins_with(std::uint64_t bytes) const noexcept;
  void begin_body() noexcept { at_ = body_begin_; }
  // True if the latest request found no slot.
  [[nodiscard]] bool missed() const noexcept { return misses_ != 0; }
  // True if so many of the latest requests found no slot that the position is probably wrong.
  [[nodiscard]] bool lost() const noexcept;

  // See PlanMatch.
  [[nodiscard]] bool fits() const noexcept { return match_.fits(); }
  // How often the position was found again after a deviation.
  [[nodiscard]] std::uint64_t resynchronizations() const noexcept { return resynchronizations_; }
  // Nothing if every request has matched so far.
  [[nodiscard]] const std::optional<Difference>& first_difference() const noexcept { return first_difference_; }

 private:
  using Position = std::uint32_t;
  struct ExpectedSlot {
    std::uint32_t units = 0;  // of kUnitBytes
    SlotKind kind = SlotKind::Static;
    bool varies = false;               // `units` is an upper size
    bool is_left_to_run_time = false;  // has no place, and its request is served dynamically
  };
  struct Gram {
    std::uint64_t hash = 0;  // of the kGram sizes that end at `end`
    Position end = 0;
    friend auto operator<=>(const Gram&, const Gram&) = default;
  };

  [[nodiscard]] Position successor(Position at) const noexcept;
  [[nodiscard]] Position predecessor(Position at) const noexcept;  // kNowhere at the plan's start
  [[nodiscard]] bool matches(Position at, std::uint32_t units) const noexcept;
  [[nodiscard]] std::uint32_t past(std::size_t back) const noexcept { return history_[(seen_ - 1 - back) % kHistory]; }

  void remember(std::uint32_t units) noexcept;
  void count(bool matched) noexcept;
  [[nodiscard]] Position find_here(std::uint32_t units) const noexcept;
  Position deviate(std::uint64_t bytes) noexcept;
  [[nodiscard]] Position find_after_deviation(bool stays) const noexcept;
  [[nodiscard]] Position find_near() const noexcept;
  [[nodiscard]] Position find_anywhere() const noexcept;
  [[nodiscard]] std::size_t agreement(Position at) const noexcept;
  void index_grams();

  static constexpr std::size_t kHistory = 64;  // latest requests that are remembered
  static constexpr std::size_t kGram = 4;      // matches of so many requests in a row are enough to move the cursor
  static constexpr Position kNowhere = ~Position{0};

  std::vector<ExpectedSlot> slots_;
  Position body_begin_ = 0;
  Position body_end_ = 0;
  // The epilogue may begin like the body. Then a run that leaves the body is known by the first requests that differ:
  // of the slot `epilogue_` instead of the slot `fork_` of the body.
  Position fork_ = 0;
  Position epilogue_ = 0;
  std::vector<Gram> grams_;  // sorted; an index of all places by the latest kGram sizes

  Position at_ = 0;  // the next slot; slots_.size() when the plan has ended
  std::uint64_t seen_ = 0;
  std::array<std::uint32_t, kHistory> history_{};
  bool keeps_place_ = false;
  std::uint32_t misses_ = 0;         // requests since the latest one that found a slot
  std::uint16_t recent_misses_ = 0;  // a bit for each of the latest 16 requests
  PlanMatch match_;
  std::uint64_t resynchronizations_ = 0;
  std::optional<Difference> first_difference_;
};

}  // namespace stalloc::plan
