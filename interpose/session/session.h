// SPDX-License-Identifier: Apache-2.0
// The library's state in one process: its mode, and the parts that the mode needs, which are created when first needed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "interpose/base/cuda_driver.h"
#include "interpose/base/options.h"
#include "interpose/record/recorder.h"
#include "interpose/session/captures.h"
#include "interpose/session/cuda.h"
#include "interpose/session/driver_functions.h"
#include "interpose/session/heaps.h"
#include "interpose/session/statistics_page.h"

namespace stalloc {

// Thread-safe, except for the constructor and the destructor; throws nothing.
class Session {
 public:
  // The process's session, created when the library is loaded and never destroyed, since hooks may run until the
  // process ends. In a test, the session that the test created last.
  static Session& get() noexcept {
    Session* const known = current_.load(std::memory_order_acquire);
    return known != nullptr ? *known : of_process();
  }

  // For tests: replaces the current session until it is destroyed. `cuda` and `captures` must outlive it. Pre, for
  // both: no other thread uses a session.
  Session(const Options& options, Cuda& cuda, Captures& captures) noexcept;
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The queries to CUDA, and what is known about captures. Lock-free.
  [[nodiscard]] static Cuda& cuda() noexcept { return *quick_.cuda.load(std::memory_order_relaxed); }
  [[nodiscard]] static Captures& captures() noexcept { return *quick_.captures.load(std::memory_order_relaxed); }

  // False if the library is off, was turned off by a failure, or is in a forked child where CUDA no longer works. Every
  // hook then only forwards.
  [[nodiscard]] bool active() const noexcept { return active_.load(std::memory_order_relaxed); }
  // True when every request for device memory must fail because the plan could not be read (STALLOC_PLAN_STRICT).
  [[nodiscard]] static bool refuses() noexcept { return refuses_.load(std::memory_order_relaxed); }

  // The heaps, if a request only needs to be served. Null if the session is inactive, records, must log figures, or has
  // not created its parts yet. Reads one cache line.
  static Heaps* fast_path_heaps() noexcept {
    return quick_.figures_wanted.load(std::memory_order_relaxed) ? nullptr
                                                                 : quick_.heaps.load(std::memory_order_acquire);
  }

  [[nodiscard]] const Options& options() const noexcept { return options_; }

  // The parts of the mode, created at the first call of either function. Null: the mode has no such part. Keep errno.
  record::Recorder* recorder() noexcept;
  Heaps* heaps() noexcept;
  // The heaps if they exist already, for calls that do not allocate.
  static Heaps* known_heaps() noexcept { return heaps_.load(std::memory_order_acquire); }
  // As these two while the session is active, else null.
  static Heaps* active_heaps() noexcept {
    Session& session = get();
    return session.active() ? session.heaps() : nullptr;
  }
  static Heaps* known_active_heaps() noexcept { return get().active() ? known_heaps() : nullptr; }

  // A door serves PyTorch's tensors. From now on heaps keep idle memory until they are asked to give it back, as
  // PyTorch's own allocator does, and new heaps create memory that can be shared with other processes.
  void serve_pytorch() noexcept;

  // Logs the figures if STALLOC_SIGNAL has arrived since the last call, since a signal handler may do almost nothing
  // itself.
  void log_requested_figures() noexcept;
  [[nodiscard]] static bool figures_wanted() noexcept { return quick_.figures_wanted.load(std::memory_order_relaxed); }

  // The program has begun to use CUDA. Looks up what the parts need: such a search takes the dynamic loader's lock,
  // which a thread may hold while it waits for another one that makes the first request. So it is done now, when the
  // program initializes CUDA.
  void cuda_is_used() noexcept;
  // Call in a child of fork. Turns the session off if `cuda_is_used` was called before the fork: such a child cannot
  // use CUDA.
  void stop_in_child() noexcept;
  // At exit: closes the trace, logs the figures, ends the statistics page, which a session that was turned off has,
  // too. Does nothing in a process that has not made these itself (a child of _Fork, clone or vfork that exits).
  void finish() noexcept;

 private:
  static inline constinit Cuda process_cuda_{&cuda_driver::symbol};
  static inline constinit Captures process_captures_{process_cuda_};

  // What each request reads, in one cache line.
  struct alignas(32) Quick {
    std::atomic<Heaps*> heaps;
    std::atomic<bool> figures_wanted;
    std::atomic<Cuda*> cuda;
    std::atomic<Captures*> captures;
  };
  static inline constinit Quick quick_{{nullptr}, {false}, {&process_cuda_}, {&process_captures_}};
  static inline constinit std::atomic<Session*> current_{nullptr};

  static Session& of_process() noexcept;
  void prepare_process() const noexcept;  // while the library is loaded: remembers, sets and registers what it needs
  void look_up() noexcept;                // once: what the parts need of the driver and of other libraries
  void first_use() noexcept;              // at the first use of CUDA: logs pending warnings and creates the parts
  std::unique_ptr<Heaps> create_heaps();  // null: they cannot be created, and the session was turned off
  void keep(std::unique_ptr<Heaps> heaps, std::unique_ptr<record::Recorder> recorder) noexcept;
  void create_statistics_page() noexcept;
  void finish_parts() noexcept;  // of an active session
  void install_signal_handler(int number);
  void turn_off(std::string_view why) noexcept;
  void deactivate() noexcept;

  Options options_;
  Session* previous_ = nullptr;  // the session that this one replaces, and its heaps
  Heaps* previous_heaps_ = nullptr;
  std::atomic<bool> active_{false};
  std::atomic<bool> cuda_used_{false};
  std::atomic<bool> serves_pytorch_{false};
  std::once_flag looked_up_;
  std::optional<serve::DriverFunctions> functions_;  // nothing: the driver lacks one of them
  const char* missing_ = nullptr;                    // its name
  std::once_flag used_;
  std::atomic<bool> ready_{false};
  std::atomic<pid_t> user_{0};  // the process of the first use; 0: there was none
  // Set once in first_use, never destroyed.
  std::atomic<record::Recorder*> recorder_{nullptr};
  static inline constinit std::atomic<Heaps*> heaps_{nullptr};
  static inline constinit std::atomic<bool> refuses_{false};
  std::atomic<StatisticsPage*> page_{nullptr};  // null: not requested, or could not be created
};

}  // namespace stalloc
