// SPDX-License-Identifier: Apache-2.0
// The stitched views made so far, kept to serve later requests, as in GMLake's (ASPLOS'24) pool of stitched blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "plan/placement/stitched_view.h"

namespace stalloc::plan {

// Views are numbered from 1 on, and Place::view is such a number; the number of a view that is gone is used again.
// Pure; not thread-safe. Throws std::bad_alloc, with nothing changed.
class ViewCache {
 public:
  struct CachedView {
    StitchedView stitched;       // empty: the number is not in use
    std::uint64_t at = 0;        // place in the range of addresses for views, bytes
    std::uint64_t room = 0;      // bytes that it may show there
    Range lent;                  // home addresses: it lies there instead, its last piece behind that, at home
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

  // Adds a view and returns its number. `room` is at least what the pieces show; with `lent`, exactly that.
  std::uint32_t add(const std::vector<Range>& pieces, std::uint64_t at, std::uint64_t room, Range lent);
  // Pre: the view has room for the pieces. `shorten` undoes it.
  void lengthen(std::uint32_t number, const std::vector<Range>& pieces);
  void shorten(std::uint32_t number, std::size_t pieces);
  void remove(std::uint32_t number);

  [[nodiscard]] CachedView& operator[](std::uint32_t number) { return views_[number - 1]; }
  [[nodiscard]] const CachedView& operator[](std::uint32_t number) const { return views_[number - 1]; }
  [[nodiscard]] std::uint32_t numbers() const { return static_cast<std::uint32_t>(views_.size()); }  // the highest
  [[nodiscard]] std::size_t count() const { return by_bytes_.size(); }
  [[nodiscard]] const ByBytes& by_bytes() const { return by_bytes_; }
  // The least recently used view in which nothing lives; 0: there is none.
  [[nodiscard]] std::uint32_t least_recent() const;

 private:
  void change(std::uint32_t number, auto change);
  [[nodiscard]] ByBytes::const_iterator entry_of(std::uint32_t number) const;

  std::vector<CachedView> views_;
  std::vector<std::uint32_t> unused_;  // numbers
  ByBytes by_bytes_;                   // the views in use
};

}  // namespace stalloc::plan
