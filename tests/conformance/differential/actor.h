// SPDX-License-Identifier: Apache-2.0
// One thread's part of a random program: its streams, its tensors, a pool of its own, its log and its random numbers.
// These alone decide what it does, and its log must not depend on the timing of other actors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/conformance/differential/log.h"
#include "tests/conformance/differential/stripes.h"
#include "tests/conformance/machine.h"
#include "tests/conformance/tensors.h"

namespace stalloc::conformance {

// What all actors of a program share.
struct World {
  std::vector<std::unique_ptr<Machine>> machines;  // one a device
  Ledger ledger;
  std::size_t total = 0;          // bytes of the smallest device
  bool peers = false;             // the devices reach each other's memory
  bool refusals = false;          // also make calls that the actor's own capture forbids
  std::set<std::string> without;  // kinds of calls that are left out
  // Events that all actors of a machine use, by machine.
  std::vector<std::array<CUevent, 3>> events;
  std::uint64_t tensors = 0;  // tensors of earlier programs, whose numbers are not used again
};

class Actor {
 public:
  Actor(World& world, std::size_t index, std::uint64_t seed);
  // Frees what is left; logs nothing.
  ~Actor();
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  // Makes the actor's context current in this thread.
  void enter() const { machine_.join(); }
  // Does one random action. Failures that must not happen are logged too.
  void act();
  // Moves the tensors of the thread's own streams, which no other thread can name, to another stream.
  void leave_thread();
  // Waits for all of its streams and compares what was read.
  void finish();

  // --- Only while no other actor does anything ---
  struct Tensor {
    std::uint64_t number = 0;
    CUdeviceptr at = 0;
    std::size_t bytes = 0;
    CUstream stream = nullptr;
    bool plain = false;
    bool of_pool = false;  // from the actor's own pool
  };
  // Frees all tensors.
  void free_all();
  // Gives up a tensor, for `admit` of another actor of the same device. Its number is 0 when there is none to give.
  Tensor give();
  void admit(const Tensor& tensor);
  // Gives up what a reset of the actor's context does not end: stream-ordered memory and its pool.
  void prepare_reset();
  // Makes everything anew after a reset of the actor's context, which left nothing of what it had. Pre: the new primary
  // context exists.
  void begin_again();

  [[nodiscard]] const Machine& machine() const { return machine_; }
  [[nodiscard]] std::size_t live() const { return tensors_.size(); }
  Log log;

 private:
  friend class Capturing;  // capturing.cpp
  friend class Asking;     // asking.cpp
  friend class Alone;      // alone.cpp

  struct Read {
    std::unique_ptr<Pinned> memory;
    CUevent done = nullptr;
    std::uint64_t tensor = 0;
    std::size_t bytes = 0;  // 0: nothing to compare
  };

  std::size_t below(std::size_t bound) { return random_() % bound; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  // Whether this kind of call is to be made.
  [[nodiscard]] bool with(const char* kind) const { return !world_.without.contains(kind); }
  CUstream any_stream();
  std::string name(CUstream stream) const;
  std::string name(const Tensor& tensor) const;
  std::size_t any_size();
  Tensor& any_tensor() { return tensors_[below(tensors_.size())]; }
  Tensor take(std::size_t index);

  void make_things();
  void allocate();
  void allocate_huge();
  // Logs the answer to a request and fills the tensor; false when it was refused.
  bool book(const std::string& call, CUresult result, Tensor what);
  void free_any();
  void free(const Tensor& tensor, CUstream stream);
  void check(const Tensor& tensor, CUstream stream);
  void compare(Read& read);
  void copy();
  void replace_stream();
  void leave_stream(CUstream stream, CUstream to);
  void synchronize();
  void use_events();
  void trim();
  void settings();
  void other_context();
  void other_device();

  World& world_;
  const std::size_t index_;
  Machine& machine_;
  std::mt19937_64 random_;
  std::vector<CUstream> streams_;
  CUmemoryPool pool_ = nullptr;
  CUevent event_ = nullptr;
  std::array<CUevent, 3> kept_{};  // recorded and waited for at random, without need
  std::vector<Tensor> tensors_;
  std::size_t live_bytes_ = 0;
  std::uint64_t next_;
  std::array<Read, 4> reads_;
  std::size_t next_read_ = 0;
};

}  // namespace stalloc::conformance
