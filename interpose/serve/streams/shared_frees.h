// SPDX-License-Identifier: Apache-2.0
// Marks (free_marks.h) for frees of bytes that two streams may still use.
#pragma once

#include <array>
#include <cstddef>

#include "interpose/serve/streams/free_marks.h"

namespace stalloc::serve {

// A tensor is freed on the stream that it was made for, its owner, while the thread works on another stream, its user:
// most likely the user was given work on the tensor, of which nothing else tells. PyTorch's native allocator gives the
// bytes to their owner only, at once. Here the owner may have them at once too, and every other stream when it is
// ordered behind the owner and behind the user.
//
// A mark above kMaxStreams stands for such a pair. When none is left, a mark stands for all streams at once: the bytes
// are then ordered behind each of them. Not thread-safe: the heap's lock covers it.
class SharedFrees {
 public:
  static constexpr FreeMark kEveryStream = kLastMark;

  // Pre: two streams. Bytes with a mark that is used again are claimed by the new pair as well: a wait too many, but
  // only their owner may have them without one, so a pair that has an owner keeps it.
  FreeMark mark_for_pair(StreamOrdinal owner, StreamOrdinal user) noexcept {
    Pair* free = nullptr;
    for (Pair& pair : pairs_) {
      if (pair.owner == owner && pair.user == user) return mark(pair);
      if (pair.user == kNoStream && (pair.owner == owner || pair.owner == kNoStream)) free = &pair;
    }
    if (free == nullptr) return kEveryStream;
    *free = {owner, user};
    has_pairs_ = true;
    return mark(*free);
  }
  // Whether a mark has ever stood for a pair.
  [[nodiscard]] bool has_pairs() const noexcept { return has_pairs_; }
  // The user of the pair that the mark stands for, if it is one of that owner's; else kNoStream.
  [[nodiscard]] StreamOrdinal user_of(FreeMark mark, StreamOrdinal owner) const noexcept {
    if (mark <= kMaxStreams || mark == kEveryStream) return kNoStream;
    const Pair& pair = pairs_[mark - kMaxStreams - 1U];
    return pair.owner == owner ? pair.user : kNoStream;
  }

  // Calls `visit(each)` for the streams that `stream` must be ordered behind to use bytes with that mark; kNoStream:
  // all of those that the mark stands for. `count`: the greatest ordinal.
  template <class Visit>
  void for_each_stream(FreeMark mark, StreamOrdinal stream, std::size_t count, Visit visit) const {
    if (mark <= kMaxStreams) {
      visit(mark);
    } else if (mark == kEveryStream) {
      for (std::size_t each = 1; each <= count; ++each) {
        if (each != stream) visit(static_cast<StreamOrdinal>(each));
      }
    } else {
      const Pair& pair = pairs_[mark - kMaxStreams - 1U];
      if (pair.owner != kNoStream && pair.owner == stream) return;
      for (const StreamOrdinal each : {pair.owner, pair.user}) {
        if (each != kNoStream && each != stream) visit(each);
      }
    }
  }

  // The stream is gone, or is about to be another: all of its frees are complete.
  void forget(StreamOrdinal stream) noexcept {
    for (Pair& pair : pairs_) {
      if (pair.owner == stream) pair.owner = kNoStream;
      if (pair.user == stream) pair.user = kNoStream;
    }
  }

 private:
  struct Pair {
    StreamOrdinal owner = kNoStream;  // this, or the other: its frees are complete
    StreamOrdinal user = kNoStream;
  };

  [[nodiscard]] FreeMark mark(const Pair& pair) const noexcept {
    return static_cast<FreeMark>(kMaxStreams + 1 + (&pair - pairs_.data()));
  }

  std::array<Pair, kLastMark - 1 - kMaxStreams> pairs_;
  bool has_pairs_ = false;
};

}  // namespace stalloc::serve
