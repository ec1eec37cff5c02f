// SPDX-License-Identifier: Apache-2.0
// Marks (free_marks.h) for frees of bytes that two streams may still use.
#pragma once

#include <array>
#include <cstddef>

#include "interpose/serve/streams/stream_ordinal.h"

namespace stalloc::serve {

// A tensor is freed on the stream that it was allocated for, its owner, while the thread works on another stream, its
// user. Most likely the user was given work on the tensor, and nothing else shows that. PyTorch's native allocator
// gives the bytes back to their owner only, at once. Here the owner gets them at once, too, and another stream gets
// them when it is ordered after both the owner and the user.
//
// A mark above kMaxStreams stands for such a pair. When all of these marks are in use, the mark kEveryStreamMark stands
// for all streams: a request for the bytes is then ordered after each of them. Not thread-safe: the heap's lock
// protects it. Nothing throws.
class SharedFrees {
 public:
  struct Pair {
    StreamOrdinal owner = kNoStream;  // kNoStream here or below: the frees of that stream are complete
    StreamOrdinal user = kNoStream;
  };

  // Returns the mark of a pair, which is assigned at the first call, or kEveryStreamMark. A mark whose user is gone is
  // assigned again. Bytes that still bear it then count as freed by the new pair, which may cost a wait that is not
  // needed. Only the owner of a pair may use the bytes without a wait, so a pair that has an owner keeps it.
  // Pre: `owner` and `user` are two streams.
  FreeMark mark_for_pair(StreamOrdinal owner, StreamOrdinal user) noexcept {
    Pair* free = nullptr;
    for (Pair& pair : pairs_) {
      if (pair.owner == owner && pair.user == user) return mark(pair);
      if (pair.user == kNoStream && (pair.owner == owner || pair.owner == kNoStream)) free = &pair;
    }
    if (free == nullptr) return kEveryStreamMark;
    *free = {owner, user};
    has_pairs_ = true;
    return mark(*free);
  }
  // True once any mark has been assigned.
  [[nodiscard]] bool has_pairs() const noexcept { return has_pairs_; }
  // The pair that `mark` stands for; null: it stands for one stream or for all.
  [[nodiscard]] const Pair* pair_of(FreeMark mark) const noexcept {
    return mark <= kMaxStreams || mark == kEveryStreamMark ? nullptr : &pairs_[mark - kMaxStreams - 1U];
  }

  // Calls `visit(each)` for the streams that `stream` must be ordered after before it uses bytes with that mark. If
  // `stream` is kNoStream, these are all streams that the mark stands for. `count` is the largest ordinal.
  template <class Visit>
  void for_each_stream(FreeMark mark, StreamOrdinal stream, std::size_t count, Visit visit) const {
    if (mark <= kMaxStreams) {
      visit(mark);
    } else if (mark == kEveryStreamMark) {
      for (std::size_t each = 1; each <= count; ++each) {
        if (each != stream) visit(static_cast<StreamOrdinal>(each));
      }
    } else {
      const Pair& pair = *pair_of(mark);
      if (pair.owner != kNoStream && pair.owner == stream) return;
      for (const StreamOrdinal each : {pair.owner, pair.user}) {
        if (each != kNoStream && each != stream) visit(each);
      }
    }
  }

  // Removes a stream from its pairs. Call when the stream has been destroyed, or its ordinal is about to be assigned to
  // another stream. Pre: all of its frees are complete.
  void forget(StreamOrdinal stream) noexcept {
    for (Pair& pair : pairs_) {
      if (pair.owner == stream) pair.owner = kNoStream;
      if (pair.user == stream) pair.user = kNoStream;
    }
  }

 private:
  [[nodiscard]] FreeMark mark(const Pair& pair) const noexcept {
    return static_cast<FreeMark>(kMaxStreams + 1 + (&pair - pairs_.data()));
  }

  std::array<Pair, kEveryStreamMark - 1 - kMaxStreams> pairs_;
  bool has_pairs_ = false;
};

}  // namespace stalloc::serve
