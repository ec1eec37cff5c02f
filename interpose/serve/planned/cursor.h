// SPDX-License-Identifier: Apache-2.0
// Which slot of the plan the next request takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "interpose/serve/planned/plan_match.h"
#include "plan/plan.h"

namespace stalloc::serve {

// Walks the slots in the order in which the program made its requests when it was recorded, matching by size:
//
//     prologue -> body -> body -> ... -> body -> epilogue
//                  ^_________|                       (body again after the epilogue)
//
// A slot whose size varies takes the next request whatever its size, so that what follows keeps its place; a request
// larger than the slot goes unplanned. After a deviation it keeps its place and lets the request go unplanned (an extra
// request), until all requests since the deviation, two or more, agree with slots a little ahead (missing requests) or
// behind (an earlier wrong jump), or the latest four agree with any part of the plan. O(1) for a request that matches.
// Not thread-safe.
class Cursor {
 public:
  enum class Answer : std::uint8_t {
    Serve,      // at `slot`
    Original,   // the plan leaves this request to the original allocator
    Unplanned,  // nothing in the plan fits here
  };
  struct Next {
    Answer answer = Answer::Unplanned;
    std::uint32_t slot = 0;  // of Serve
  };
  // A request that was not the one that the plan has there.
  struct Difference {
    std::uint64_t request = 0;   // its number: the first has 1
    std::uint64_t bytes = 0;     // that it asked for
    std::uint64_t expected = 0;  // bytes of the slot there, which are rounded up to kUnitBytes; 0: the plan had ended
  };

  // Throws std::bad_alloc.
  explicit Cursor(const plan::DevicePlan& plan);

  // The program requests `bytes` > 0.
  Next next(std::uint64_t bytes) noexcept;
  // The program requests `bytes` under stream capture: passed through whatever the plan says. Takes the slot that
  // foresaw it, if that is the next one; no deviation otherwise.
  void pass_through(std::uint64_t bytes) noexcept;
  // The latest request has a slot that is not in order: it says nothing about the place. The next request that finds no
  // slot here is not looked for in the whole plan.
  void keep_place() noexcept { keeps_place_ = true; }
  // The body has not begun, and there is one.
  [[nodiscard]] bool is_before_body() const noexcept { return at_ < body_begin_ && body_begin_ < body_end_; }

  // The next slot is for a request like this one.
  [[nodiscard]] bool awaits(std::uint64_t bytes) const noexcept;
  [[nodiscard]] bool body_begins_with(std::uint64_t bytes) const noexcept;
  void begin_body() noexcept { at_ = body_begin_; }
  // The latest request found no slot.
  [[nodiscard]] bool missed() const noexcept { return misses_ != 0; }
  // So many of the latest requests found no slot that the place is lost.
  [[nodiscard]] bool lost() const noexcept;

  // False from the moment on when it is clear that the plan is of another program.
  [[nodiscard]] bool fits() const noexcept { return match_.fits(); }
  [[nodiscard]] std::uint64_t resynchronisations() const noexcept { return resynchronisations_; }
  // Nothing as long as every request was as planned.
  [[nodiscard]] const std::optional<Difference>& first_difference() const noexcept { return first_difference_; }

 private:
  using Position = std::uint32_t;
  struct ExpectedSlot {
    std::uint32_t units = 0;  // of plan::kUnitBytes
    plan::SlotKind kind = plan::SlotKind::Static;
    bool varies = false;  // `units` is an upper size
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
  Position deviate(std::uint64_t bytes) noexcept;  // the request is not as planned: the slot that it takes, or kNowhere
  [[nodiscard]] Position find_after_deviation(bool stays) const noexcept;
  [[nodiscard]] Position find_near() const noexcept;
  [[nodiscard]] Position find_anywhere() const noexcept;
  [[nodiscard]] std::size_t agreement(Position at) const noexcept;
  void index_grams();

  static constexpr std::size_t kHistory = 64;  // requests remembered
  static constexpr std::size_t kGram = 4;      // so many that agree are followed, whatever the others say
  static constexpr Position kNowhere = ~Position{0};

  std::vector<ExpectedSlot> slots_;
  Position body_begin_ = 0;
  Position body_end_ = 0;
  std::vector<Gram> grams_;  // sorted

  Position at_ = 0;  // the next slot; slots_.size() when the plan has ended
  std::uint64_t seen_ = 0;
  std::array<std::uint32_t, kHistory> history_{};
  bool keeps_place_ = false;
  std::uint32_t misses_ = 0;         // since the latest request that found a slot
  std::uint16_t recent_misses_ = 0;  // a bit for each of the latest 16 requests
  PlanMatch match_;
  std::uint64_t resynchronisations_ = 0;
  std::optional<Difference> first_difference_;
};

}  // namespace stalloc::serve
