// SPDX-License-Identifier: Apache-2.0
// A model of programs with streams and events, as CUDA executes them and as the library observes them. The fake driver
// knows the true order, and every number that the library relies on is compared with it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "as_heap.h"
#include "fake_driver.h"
#include "interpose/serve/driver/capture_gate.h"
#include "interpose/serve/streams/event_order.h"
#include "interpose/serve/streams/stream_order.h"

namespace stalloc::test {

// Two contexts with streams and events. The program's calls use the same functions as the hooks. `meanwhile` is called
// during each call, before and after CUDA's own part, in place of other threads. Thread-safe as far as CUDA is; stream
// orders are used with a lock held, as in a heap.
class OrderModel {
 public:
  struct Broken : std::logic_error {
    using std::logic_error::logic_error;
  };
  static constexpr std::uint64_t kPage = 64 << 10;
  static constexpr std::size_t kPages = 16;
  static constexpr std::uint64_t kWatchedFrees = 2;  // so that streams are often not watched

  struct Context {
    CUcontext handle;
    serve::StreamOrder order;
    std::mutex lock;  // as a heap's
    struct Free {
      std::uint64_t number = 0;
      Moment moment;
    };
    std::map<serve::StreamOrdinal, std::vector<Free>> frees;
    std::vector<Moment> pages = std::vector<Moment>(kPages);  // the latest free of each
    std::vector<bool> freed = std::vector<bool>(kPages);

    Context(FakeDriver& driver, CUcontext context, serve::EventOrder* events)
        : handle(context), order(driver, context, kPages * kPage, kPage, events, kWatchedFrees) {}
  };

  OrderModel()
      : contexts{{driver, FakeDriver::context(), events.get()}, {driver, FakeDriver::other_context(), events.get()}} {}

  FakeDriver driver{kPage};
  std::unique_ptr<serve::EventOrder> events = std::make_unique<serve::EventOrder>();
  serve::CaptureGate gate;
  Context contexts[2];

  struct Stream {
    StreamKey key;
    std::size_t context = 0;
  };

  Stream make_stream(std::size_t context, unsigned flags = CU_STREAM_NON_BLOCKING) {
    return {{driver.new_stream(contexts[context].handle, flags), 0}, context};
  }
  void destroy_stream(const Stream& stream) {
    Context& of = contexts[stream.context];
    std::optional<serve::StreamOrder::EventAtFree> event;
    {
      const std::lock_guard lock(of.lock);
      event = of.order.prepare_destruction(stream.key.handle);
    }
    if (event) {
      of.order.find_idle_or_record(*event);
      const std::lock_guard lock(of.lock);
      of.order.stream_destroyed(*event);
    }
    driver.destroy_stream(stream.key.handle);
  }
  CUevent make_event(std::size_t context) {
    driver.push_context(contexts[context].handle);
    CUevent event = nullptr;
    if (driver.create_event(&event) != CUDA_SUCCESS) throw Broken("no event");
    driver.pop_context();
    events->forget(event);
    const std::lock_guard lock(captured_mutex_);
    captured_[event] = false;
    return event;
  }
  void destroy_event(CUevent event) {
    events->forget(event);
    driver.destroy_event(event);
  }

  // Gives the stream work, and then frees the page on it, as a heap does. Other threads may free on the same stream
  // while the event is recorded.
  void use_and_free(const Stream& stream, std::size_t page) {
    Context& of = contexts[stream.context];
    const Moment moment = driver.work(stream.key);
    std::unique_lock lock(of.lock);
    create_events_ahead(of);
    serve::StreamOrdinal ordinal = in_context(of, [&] { return of.order.ordinal(stream.key); });
    if (ordinal == serve::kNoStream) return;
    serve::StreamOrder::EventAtFree event;
    const bool is_planned = page % 2 == 0;  // the others have an event as long as the stream is watched
    if (is_planned || of.order.wants_event(ordinal, true)) {
      event = of.order.prepare_event(ordinal);
      lock.unlock();
      if (event.event != nullptr) of.order.record(event);
      lock.lock();
    }
    const serve::StreamOrder::HandOver at_free(of.order, event);
    ordinal = in_context(of, [&] { return of.order.ordinal(stream.key); });
    if (ordinal == serve::kNoStream) return;
    const std::uint64_t number = of.order.assign_free_number(ordinal);
    const serve::PhysicalRange range = range_of(page);
    of.order.mark_freed({&range, 1}, ordinal, number);
    of.frees[ordinal].push_back({number, moment});
    of.pages[page] = moment;
    of.freed[page] = true;
  }

  // Requests the page on the stream. Throws Broken if it is served without order.
  void take(const Stream& stream, std::size_t page) {
    Context& of = contexts[stream.context];
    std::unique_lock lock(of.lock);
    const serve::StreamOrdinal ordinal = in_context(of, [&] { return of.order.ordinal(stream.key); });
    if (ordinal == serve::kNoStream || !of.freed[page]) return;
    const serve::PhysicalRange range = range_of(page);
    const Moment freed = of.pages[page];
    of.order.forget_waits();
    bool granted = of.order.order({&range, 1}, ordinal);
    if (granted && of.order.has_waits()) {
      serve::StreamOrder::Waits waits = of.order.take_waits();
      lock.unlock();
      of.order.make(waits);
      lock.lock();
      granted = waits.all_are_made();
      of.order.note_made(std::move(waits));
      if (!granted) of.order.mark_unordered({&range, 1});
    }
    if (granted && !driver.is_ordered(stream.key, freed)) {
      throw Broken("bytes were granted to a stream that is not behind their free");
    }
  }
  void take_for_all(std::size_t context, std::size_t page) {
    Context& of = contexts[context];
    const std::lock_guard lock(of.lock);
    const serve::PhysicalRange range = range_of(page);
    if (of.freed[page] && of.order.is_complete({&range, 1}) && !driver.is_over(of.pages[page])) {
      throw Broken("bytes were granted to all streams before their last use was over");
    }
  }

  template <class Meanwhile>
  void record(CUevent event, const Stream& stream, bool fails, Meanwhile meanwhile) {
    events->record(
        event, gate, [&] { return clock(stream); },
        [&] {
          meanwhile();
          if (fails) return CUDA_ERROR_UNKNOWN;
          const CUresult result = record_now(event, stream);
          meanwhile();
          return result;
        });
  }
  // Makes calls that the library does not observe.
  CUresult record_now(CUevent event, const Stream& stream) {
    const bool captured = is_capturing(stream);
    if (!captured && driver.record_event(event, stream.key.handle) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;
    const std::lock_guard lock(captured_mutex_);
    captured_[event] = captured;
    return CUDA_SUCCESS;
  }
  template <class Meanwhile>
  void wait(const Stream& stream, CUevent event, bool fails, Meanwhile meanwhile) {
    events->wait(
        event, gate, [&] { return clock(stream); },
        [&] {
          meanwhile();
          // Neither call orders streams: one makes a graph node, the other joins a capture.
          const bool orders = !is_capturing(stream) && !is_captured(event);
          CUresult result = fails ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
          if (orders && !fails) result = driver.wait_event(stream.key.handle, event);
          meanwhile();
          return result;
        });
  }
  // Records a whole context, as cuCtxRecordEvent does.
  void record_untracked(CUevent event, const Stream& stream) {
    events->record_untracked(event, [&] { return record_now(event, stream); });
  }
  template <class Meanwhile>
  void query(CUevent event, Meanwhile meanwhile) {
    observe_completion(event, [&] {
      meanwhile();
      const CUresult result = is_captured(event) ? CUDA_ERROR_CAPTURED_EVENT : driver.query_event(event);
      meanwhile();
      return result;
    });
  }
  template <class Meanwhile>
  void synchronize(CUevent event, Meanwhile meanwhile) {
    observe_completion(event, [&] {
      meanwhile();
      if (is_captured(event)) return CUDA_ERROR_CAPTURED_EVENT;
      driver.finish_work_before(event);
      meanwhile();
      return CUDA_SUCCESS;
    });
  }
  template <class Meanwhile>
  void synchronize(const Stream& stream, Meanwhile meanwhile) {
    serve::StreamClock* known_of = clock(stream);
    if (known_of == nullptr) return;
    serve::StreamClock::Snapshot known;
    known_of->snapshot(&known);
    meanwhile();
    driver.finish_work_of(stream.key);
    meanwhile();
    known_of->all().mark_complete(known);
  }
  template <class Meanwhile>
  void synchronize(std::size_t context, Meanwhile meanwhile) {
    serve::StreamClocks& clocks = contexts[context].order.clocks();
    const std::uint64_t number = clocks.latest_number();
    meanwhile();
    if (gate.may_be_capturing()) return;  // a capture has begun meanwhile, during which CUDA refuses this
    driver.push_context(contexts[context].handle);
    driver.synchronize_context();
    driver.pop_context();
    meanwhile();
    clocks.mark_all_complete(number);
  }

  void begin_capture(const Stream& stream) {
    gate.capture_began();
    driver.set_capturing(stream.key.handle, true);
  }
  void end_capture(const Stream& stream) {
    driver.set_capturing(stream.key.handle, false);
    gate.capture_ended();
  }
  bool is_capturing(const Stream& stream) {
    bool capturing = false;
    driver.is_capturing(stream.key.handle, &capturing);
    return capturing;
  }

  serve::StreamClock* clock(const Stream& stream) {
    Context& of = contexts[stream.context];
    const std::lock_guard lock(of.lock);
    return in_context(of, [&] { return of.order.clock(stream.key); });
  }

  // Checks all numbers that the library relies on for the stream. Throws Broken if one is wrong.
  void check(const Stream& stream) {
    serve::StreamClock* believed = clock(stream);
    if (believed == nullptr) return;
    Context& of = contexts[stream.context];
    for (std::size_t owner = 1; owner <= of.order.clocks().count(); ++owner) {
      if (owner == believed->ordinal()) continue;
      const std::uint64_t number = believed->ordered_after(owner);
      for (const auto& free : frees_up_to(of, owner, number)) {
        if (!driver.is_ordered(stream.key, free.moment))
          throw Broken("a stream is not behind a free that it is said to be");
      }
      believed_ += number != 0;
    }
  }
  void check_complete(std::size_t context) {
    Context& of = contexts[context];
    for (std::size_t owner = 1; owner <= of.order.clocks().count(); ++owner) {
      const std::uint64_t number = of.order.clocks().complete_up_to(static_cast<serve::StreamOrdinal>(owner));
      for (const auto& free : frees_up_to(of, owner, number)) {
        if (!driver.is_over(free.moment)) throw Broken("a free is not over that is said to be");
      }
    }
  }
  // How many numbers were checked.
  [[nodiscard]] std::uint64_t believed() const { return believed_; }

 private:
  template <class Ask>
  void observe_completion(CUevent event, Ask ask) {
    events->observe_completion(
        event,
        [&](std::uint64_t id) -> serve::StreamClocks* {
          for (Context& of : contexts) {
            if (of.order.clocks().id() == id) return &of.order.clocks();
          }
          return nullptr;
        },
        ask);
  }

  void create_events_ahead(Context& of) {
    in_context(of, [&] {
      create_events(of.order, driver, of.order.missing_events());
      return true;
    });
  }

  template <class Action>
  std::invoke_result_t<Action> in_context(Context& of, Action action) {
    driver.push_context(of.handle);
    auto result = action();
    driver.pop_context();
    return result;
  }
  static std::vector<Context::Free> frees_up_to(Context& of, std::size_t owner, std::uint64_t number) {
    std::vector<Context::Free> found;
    const std::lock_guard lock(of.lock);
    for (const auto& free : of.frees[static_cast<serve::StreamOrdinal>(owner)]) {
      if (free.number <= number) found.push_back(free);
    }
    return found;
  }
  static serve::PhysicalRange range_of(std::size_t page) { return {page * kPage, (page + 1) * kPage}; }

  bool is_captured(CUevent event) {
    const std::lock_guard lock(captured_mutex_);
    return captured_[event];
  }

  std::mutex captured_mutex_;
  std::map<CUevent, bool> captured_;  // true: the latest record was captured
  std::atomic<std::uint64_t> believed_{0};
};

}  // namespace stalloc::test
