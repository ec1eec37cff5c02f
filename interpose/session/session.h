// The library's life in one process: what mode it is in, and the parts that mode needs, made when first needed.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "interpose/base/options.h"
#include "interpose/record/recorder.h"
#include "interpose/session/heaps.h"
#include "interpose/session/statistics_page.h"

namespace stalloc {

class Session {
 public:
  // The only one. Made when the library is loaded, never destroyed: hooks may run until the process is gone.
  static Session& get() noexcept;

  // False when turned off, after a failure that turned it off, and in a child of fork where CUDA no longer works: then
  // every hook only forwards.
  [[nodiscard]] bool active() const noexcept { return active_.load(std::memory_order_relaxed); }
  // Every request for device memory is to fail: there should be a plan, and it could not be read (STALLOC_PLAN_STRICT).
  [[nodiscard]] static bool refuses() noexcept { return refuses_.load(std::memory_order_relaxed); }

  // The heaps, when serving is all there is to do for a request. Else null: inactive, in trace mode, figures are
  // wanted, or the parts are yet to be made. Answered from one cache line.
  static Heaps* only_serving() noexcept {
    return quick_.figures_wanted.load(std::memory_order_relaxed) ? nullptr
                                                                 : quick_.heaps.load(std::memory_order_acquire);
  }

  [[nodiscard]] const Options& options() const noexcept { return options_; }

  // The parts of the mode, made at the first call of either. Null: not in trace mode; nothing to serve from.
  record::Recorder* recorder() noexcept;
  Heaps* heaps() noexcept;
  // The heaps if they were made before: what does not allocate need not make them.
  static Heaps* known_heaps() noexcept { return heaps_.load(std::memory_order_acquire); }

  // PyTorch's tensors come through a door. Heaps keep idle memory until they are told to give it back, as PyTorch's own
  // allocator does, and those that are made from now on create memory that other processes can be given.
  void serve_pytorch() noexcept;

  // Logs the figures if STALLOC_SIGNAL came since the last call: a handler itself may do next to nothing.
  void answer_signal() noexcept;
  [[nodiscard]] static bool figures_wanted() noexcept { return quick_.figures_wanted.load(std::memory_order_relaxed); }

  // The program has begun to use CUDA. A child of fork can use it only if its parent had not: so it is active as long
  // as this was not called before the fork.
  void cuda_is_used() noexcept { cuda_used_.store(true, std::memory_order_relaxed); }
  void stop_in_child() noexcept;
  void finish() noexcept;  // at exit: closes the trace, logs the figures, ends the statistics page

 private:
  struct alignas(16) Quick {
    std::atomic<Heaps*> heaps;
    std::atomic<bool> figures_wanted;
  };
  static inline constinit Quick quick_;

  Session() noexcept;
  void first_use() noexcept;  // CUDA is used: warnings that were held back, and the parts
  void begin_serving();
  void show_figures() noexcept;
  void watch_signal(int number);
  void turn_off(const std::string& why) noexcept;
  void deactivate() noexcept;

  Options options_;
  std::atomic<bool> active_{false};
  std::atomic<bool> cuda_used_{false};
  std::atomic<bool> serves_pytorch_{false};
  std::once_flag used_;
  std::atomic<bool> ready_{false};
  // Set once in first_use, never destroyed.
  std::atomic<record::Recorder*> recorder_{nullptr};
  static inline constinit std::atomic<Heaps*> heaps_{nullptr};
  static inline constinit std::atomic<bool> refuses_{false};
  std::atomic<StatisticsPage*> page_{nullptr};  // null: nobody asked for one, or it could not be made
};

}  // namespace stalloc
