#include "interpose/session/session.h"

#include <pthread.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <string>

#include "interpose/base/frameworks.h"
#include "interpose/base/log.h"
#include "interpose/base/process.h"
#include "interpose/session/cuda_query.h"
#include "interpose/session/driver_functions.h"
#include "plan/plan_file.h"

namespace stalloc {

Session& Session::get() noexcept {
  alignas(Session) static std::byte storage[sizeof(Session)];
  static Session* const session = new (storage) Session();
  return *session;
}

Session::Session() noexcept
    : options_(parse_options([](const char* name) -> const char* { return std::getenv(name); })) {
  log::set_level(options_.log_level);
  if (options_.mode == Mode::Auto) options_.mode = options_.plan.empty() ? Mode::Trace : Mode::Alloc;
  if (options_.mode == Mode::Off) return;
  if (options_.frameworks) set_framework_variables();
  pthread_atfork(nullptr, nullptr, [] { Session::get().stop_in_child(); });
  active_.store(true);
}

void Session::first_use() noexcept {
  try {
    if (!options_.refused_variable.empty()) {
      log::warn("{}={} is not understood (expected {}); its default is used", options_.refused_variable,
                options_.refused_value, options_.refused_accepted);
    }
    if (options_.frameworks) warn_of_conflicting_variables();
    if (options_.mode == Mode::Trace) begin_recording();
    if (options_.mode == Mode::Alloc) begin_serving();
  } catch (const std::exception& error) {
    turn_off(error.what());
  }
}

void Session::turn_off(const std::string& why) noexcept {
  log::warn("{}; stalloc is off", why);
  active_.store(false);
}

void Session::begin_recording() { recorder_.store(new record::Recorder(options_, &cuda_query::describe_device)); }

void Session::begin_serving() {
  if (options_.plan.empty()) return turn_off("STALLOC_MODE=alloc needs STALLOC_PLAN");
  auto plan = plan::read_plan(expand_path(options_.plan));
  if (!plan.ok()) return turn_off("plan refused: " + plan.error);
  const char* missing = nullptr;
  const auto functions = find_driver_functions(&missing);
  if (!functions) return turn_off(std::string("the CUDA driver has no ") + missing);
  heaps_.store(new Heaps(std::move(plan.value), *functions));
}

record::Recorder* Session::recorder() noexcept {
  if (record::Recorder* made = recorder_.load(std::memory_order_acquire)) return made;
  if (options_.mode != Mode::Trace) return nullptr;
  std::call_once(used_, [this] { first_use(); });
  return recorder_.load(std::memory_order_acquire);
}

Heaps* Session::heaps() noexcept {
  if (Heaps* made = heaps_.load(std::memory_order_acquire)) return made;
  if (options_.mode != Mode::Alloc) return nullptr;
  std::call_once(used_, [this] { first_use(); });
  return heaps_.load(std::memory_order_acquire);
}

void Session::stop_in_child() noexcept { active_.store(false); }

void Session::finish() noexcept {
  if (!active_.load()) return;
  if (record::Recorder* recorder = recorder_.load()) recorder->close();
  if (Heaps* heaps = heaps_.load()) heaps->log_figures();
}

namespace {
__attribute__((constructor)) void on_load() { Session::get(); }
__attribute__((destructor)) void on_exit() { Session::get().finish(); }
}  // namespace

}  // namespace stalloc
