// The stitched views made so far, kept to serve later requests. GMLake's (ASPLOS'24) pool of stitched blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "plan/placement/stitched_view.h"

namespace stalloc::plan {

// Views have numbers from 1 on, as Place has them; those of views that are gone are given again. Pure; not thread-safe.
// Throws std::bad_alloc, with nothing changed.
class ViewCache {
 public:
  struct View {
    StitchedView stitched;       // empty: the number is not in use
    std::uint64_t at = 0;        // place in the range of addresses for views, bytes
    std::uint64_t room = 0;      // bytes that it may show there
    Range lent;                  // of the line: it lies there instead, and its last piece behind it, at home
    std::uint64_t live = 0;      // requests that live in it
    std::uint64_t used_at = 0;   // for finding the least recently used
    std::uint64_t freed_at = 0;  // number of the latest free in it, as its user counts them
    [[nodiscard]] std::uint64_t bytes() const { return stitched.bytes(); }
    // The pieces that are mapped for it.
    [[nodiscard]] std::span<const Range> mapped() const {
      const std::span<const Range> all = stitched.pieces();
      return lent.bytes() > 0 ? all.first(all.size() - 1) : all;
    }
  };
  using ByBytes = std::multimap<std::uint64_t, std::uint32_t>;  // bytes, number

  // `room` is at least what the pieces show; with `lent`, just that.
  std::uint32_t add(const std::vector<Range>& pieces, std::uint64_t at, std::uint64_t room, Range lent);
  // Pre: there is room. `shorten` undoes it.
  void lengthen(std::uint32_t number, const std::vector<Range>& pieces);
  void shorten(std::uint32_t number, std::size_t pieces);
  void remove(std::uint32_t number);

  [[nodiscard]] View& operator[](std::uint32_t number) { return views_[number - 1]; }
  [[nodiscard]] const View& operator[](std::uint32_t number) const { return views_[number - 1]; }
  [[nodiscard]] std::uint32_t numbers() const { return static_cast<std::uint32_t>(views_.size()); }  // the highest yet
  [[nodiscard]] std::size_t count() const { return by_bytes_.size(); }
  [[nodiscard]] const ByBytes& by_bytes() const { return by_bytes_; }
  // Of those that nothing lives in; 0: none.
  [[nodiscard]] std::uint32_t least_recent() const;

 private:
  void change(std::uint32_t number, auto change);
  [[nodiscard]] ByBytes::const_iterator entry_of(std::uint32_t number) const;

  std::vector<View> views_;
  std::vector<std::uint32_t> unused_;  // numbers
  ByBytes by_bytes_;                   // in use
};

}  // namespace stalloc::plan
