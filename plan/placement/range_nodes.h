// SPDX-License-Identifier: Apache-2.0
// Ranges, ordered by address and by size at the same time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace stalloc::plan {

// Each range is a node of two treaps (Seidel and Aragon, "Randomized Search Trees", 1996) and of two lists. A range
// that changes but keeps its neighbors is changed in place. Nodes are reused, so few changes allocate memory. A node
// that was found in one order is known in the other, too. A node fills one cache line. Not thread-safe.
class RangeNodes {
 public:
  using Index = std::uint32_t;  // of a node; 0: none, before the first and after the last
  using Pair = std::pair<std::uint64_t, std::uint64_t>;

 private:
  enum Order : std::uint8_t { kAddress, kSize };
  struct Links {
    Index parent = 0, left = 0, right = 0;
    Index previous = 0, next = 0;  // in a ring through node 0
  };
  struct alignas(64) Node {
    Pair range;  // begin, end; begin == end: in no order
    std::array<Links, 2> links;
    std::uint32_t priority = 0;  // greater than those of its children
  };

 public:
  // In the order of addresses.
  class Iterator {
   public:
    using iterator_category = std::bidirectional_iterator_tag;
    using value_type = Pair;
    using difference_type = std::ptrdiff_t;
    using pointer = const Pair*;
    using reference = const Pair&;

    Iterator() = default;
    Iterator(const Node* nodes, Index at) : nodes_(nodes), at_(at) {}
    reference operator*() const { return nodes_[at_].range; }
    pointer operator->() const { return &nodes_[at_].range; }
    Iterator& operator++() { return at_ = nodes_[at_].links[kAddress].next, *this; }
    Iterator& operator--() { return at_ = nodes_[at_].links[kAddress].previous, *this; }
    Iterator operator++(int) { return std::exchange(*this, std::next(*this)); }
    Iterator operator--(int) { return std::exchange(*this, std::prev(*this)); }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const Node* nodes_ = nullptr;
    Index at_ = 0;
  };
  [[nodiscard]] Iterator begin() const { return iterator(next(0)); }
  [[nodiscard]] Iterator end() const { return iterator(0); }
  [[nodiscard]] Iterator iterator(Index node) const { return {nodes_.data(), node}; }
  [[nodiscard]] auto rbegin() const { return std::make_reverse_iterator(end()); }
  [[nodiscard]] auto rend() const { return std::make_reverse_iterator(begin()); }
  [[nodiscard]] bool empty() const { return roots_[kAddress] == 0; }

  // The range of a node; an empty one for node 0.
  [[nodiscard]] const Pair& operator[](Index node) const { return nodes_[node].range; }
  [[nodiscard]] Index next(Index node) const { return nodes_[node].links[kAddress].next; }
  // The next range in the order of sizes (among equals, of addresses), and the last one in this order.
  [[nodiscard]] Index next_larger(Index node) const { return nodes_[node].links[kSize].next; }
  [[nodiscard]] Index largest() const { return nodes_[0].links[kSize].previous; }

  // The last range that begins at or before `at`.
  [[nodiscard]] Index at_or_before(std::uint64_t at) const {
    Index found = 0;
    for (Index node = roots_[kAddress]; node != 0;) {
      if (nodes_[node].range.first <= at) {
        found = node;
        node = nodes_[node].links[kAddress].right;
      } else {
        node = nodes_[node].links[kAddress].left;
      }
    }
    return found;
  }
  // The smallest range of at least `bytes`; among equals the lowest.
  [[nodiscard]] Index smallest(std::uint64_t bytes) const { return next_larger(smaller({bytes, 0})); }

  // The next `insert` does not throw. Throws std::bad_alloc, with nothing changed.
  void make_room() {
    if (unused_ != 0) return;
    nodes_.emplace_back();
    unused_ = static_cast<Index>(nodes_.size() - 1);
    nodes_.back().priority = scatter(unused_);
  }
  // Pre: `range` is not empty, and lies between `previous` and the next range after it. Throws std::bad_alloc, with
  // nothing changed.
  Index insert(Index previous, Pair range) {
    make_room();
    const Index node = unused_;
    unused_ = nodes_[node].links[kAddress].next;
    nodes_[node].range = range;
    link<kAddress>(node, previous);
    link<kSize>(node, smaller(size(node)));
    return node;
  }
  void erase(Index node) {
    unlink<kAddress>(node);
    unlink<kSize>(node);
    nodes_[node].range = {};
    nodes_[node].links[kAddress].next = std::exchange(unused_, node);
  }
  // Pre: as for `insert`, between the neighbors of `node`.
  void change(Index node, Pair range) {
    nodes_[node].range = range;
    const Links& links = nodes_[node].links[kSize];
    const bool stays = (links.previous == 0 || size(links.previous) < size(node)) &&
                       (links.next == 0 || size(node) < size(links.next));
    if (stays) return;
    unlink<kSize>(node);
    link<kSize>(node, smaller(size(node)));
  }
  void clear() { *this = {}; }

 private:
  [[nodiscard]] Pair size(Index node) const {
    const Pair& range = nodes_[node].range;
    return {range.second - range.first, range.first};
  }
  // The last range before the key in the order of sizes.
  [[nodiscard]] Index smaller(Pair key) const {
    Index found = 0;
    for (Index node = roots_[kSize]; node != 0;) {
      if (size(node) < key) {
        found = node;
        node = nodes_[node].links[kSize].right;
      } else {
        node = nodes_[node].links[kSize].left;
      }
    }
    return found;
  }

  template <Order O>
  Links& links(Index node) {
    return nodes_[node].links[O];
  }

  template <Order O>
  void link(Index node, Index previous) {
    const Index next = links<O>(previous).next;
    links<O>(previous).next = node;
    links<O>(next).previous = node;
    Links& own = links<O>(node);
    own = {.previous = previous, .next = next};
    if (previous != 0 && links<O>(previous).right == 0) {
      own.parent = previous;
      links<O>(previous).right = node;
    } else if (next != 0) {  // it is the leftmost behind `previous`
      own.parent = next;
      links<O>(next).left = node;
    } else {
      roots_[O] = node;
    }
    while (own.parent != 0 && nodes_[own.parent].priority < nodes_[node].priority) rotate_up<O>(node);
  }

  template <Order O>
  void unlink(Index node) {
    Links& own = links<O>(node);
    links<O>(own.previous).next = own.next;
    links<O>(own.next).previous = own.previous;
    while (own.left != 0 && own.right != 0) {
      rotate_up<O>(nodes_[own.left].priority > nodes_[own.right].priority ? own.left : own.right);
    }
    const Index child = own.left + own.right;
    replace_child<O>(own.parent, node, child);
    if (child != 0) links<O>(child).parent = own.parent;
  }

  template <Order O>
  void rotate_up(Index node) {
    Links& own = links<O>(node);
    const Index parent = own.parent;
    Links& above = links<O>(parent);
    Index& given = above.left == node ? own.right : own.left;  // the child that changes its parent
    (above.left == node ? above.left : above.right) = given;
    if (given != 0) links<O>(given).parent = parent;
    given = parent;
    own.parent = above.parent;
    replace_child<O>(above.parent, parent, node);
    above.parent = node;
  }

  template <Order O>
  void replace_child(Index parent, Index old, Index child) {
    Index& at = parent == 0 ? roots_[O] : links<O>(parent).left == old ? links<O>(parent).left : links<O>(parent).right;
    at = child;
  }

  // Spreads node numbers over all priorities, so that treaps are balanced (the finalizer of MurmurHash3).
  static std::uint32_t scatter(std::uint32_t value) {
    value = (value ^ value >> 16) * 0x85ebca6bU;
    value = (value ^ value >> 13) * 0xc2b2ae35U;
    return value ^ value >> 16;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<Index, 2> roots_{};
  Index unused_ = 0;  // the first of a list
};

}  // namespace stalloc::plan
