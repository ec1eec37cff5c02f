// The library's life in one process: what mode it is in, and the parts that mode needs, made when first needed.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "interpose/base/cuda_driver.h"
#include "interpose/base/options.h"
#include "interpose/record/recorder.h"
#include "interpose/session/captures.h"
#include "interpose/session/cuda.h"
#include "interpose/session/heaps.h"
#include "interpose/session/statistics_page.h"

namespace stalloc {

class Session {
 public:
  // The one that there is: the process's, made when the library is loaded and never destroyed, since hooks may run
  // until the process is gone. In a test, the one that the test made last.
  static Session& get() noexcept {
    Session* const known = current_.load(std::memory_order_acquire);
    return known != nullptr ? *known : of_process();
  }

  // For tests: in the place of the one that there is, until it is destroyed. What it points to lives longer. Pre, of
  // both: no other thread is inside.
  Session(const Options& options, Cuda& cuda, Captures& captures) noexcept;
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // What it asks of CUDA.
  [[nodiscard]] static Cuda& cuda() noexcept { return *quick_.cuda.load(std::memory_order_relaxed); }
  [[nodiscard]] static Captures& captures() noexcept { return *quick_.captures.load(std::memory_order_relaxed); }

  // False when turned off, after a failure that turned it off, and in a child of fork: then every hook only forwards.
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
  // As these two while the session is active, else null.
  static Heaps* active_heaps() noexcept {
    Session& session = get();
    return session.active() ? session.heaps() : nullptr;
  }
  static Heaps* known_active_heaps() noexcept { return get().active() ? known_heaps() : nullptr; }

  // PyTorch's tensors come through a door. Heaps keep idle memory until they are told to give it back, as PyTorch's own
  // allocator does, and those that are made from now on create memory that other processes can be given.
  void serve_pytorch() noexcept;

  // Logs the figures if STALLOC_SIGNAL came since the last call: a handler itself may do next to nothing.
  void answer_signal() noexcept;
  [[nodiscard]] static bool figures_wanted() noexcept { return quick_.figures_wanted.load(std::memory_order_relaxed); }

  void stop_in_child() noexcept;
  void finish() noexcept;  // at exit: closes the trace, logs the figures, ends the statistics page

 private:
  static inline constinit Cuda process_cuda_{&cuda_driver::symbol};
  static inline constinit Captures process_captures_{process_cuda_};

  // What is asked for at each request, in one cache line.
  struct alignas(32) Quick {
    std::atomic<Heaps*> heaps;
    std::atomic<bool> figures_wanted;
    std::atomic<Cuda*> cuda;
    std::atomic<Captures*> captures;
  };
  static inline constinit Quick quick_{{nullptr}, {false}, {&process_cuda_}, {&process_captures_}};
  static inline constinit std::atomic<Session*> current_{nullptr};

  static Session& of_process() noexcept;
  void first_use() noexcept;  // CUDA is used: warnings that were held back, and the parts
  void begin_serving();
  void show_figures() noexcept;
  void watch_signal(int number);
  void turn_off(const std::string& why) noexcept;
  void deactivate() noexcept;

  Options options_;
  Session* previous_ = nullptr;  // that this one stands in the place of
  std::atomic<bool> active_{false};
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
