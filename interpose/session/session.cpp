// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/session.h"

#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is POSIX, not in <csignal>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "interpose/base/environment.h"
#include "interpose/base/foreign_variables.h"
#include "interpose/base/frameworks.h"
#include "interpose/base/kept_errno.h"
#include "interpose/base/log.h"
#include "interpose/base/process.h"
#include "interpose/base/quiet_writes.h"
#include "interpose/base/rdma.h"
#include "interpose/record/call_stack.h"
#include "interpose/session/driver_functions.h"
#include "interpose/session/event_tracking.h"
#include "plan/files/plan_file.h"

namespace stalloc {
namespace {

// A block that other streams used is recorded as freed only when its memory can be reused, so that no plan reuses it
// earlier (HeapOptions::on_free_complete).
void record_completed_free(int device, CUdeviceptr address, StreamKey owner) noexcept {
  record::Recorder* recorder = Session::get().recorder();
  if (recorder == nullptr) return;
  record::TracedCall event;
  event.kind = trace::EventKind::FreeAsync;
  event.device = device;
  event.address = address;
  event.stream = owner;
  recorder->record(event);
}

serve::HeapOptions heap_options(const Options& options) {
  serve::HeapOptions heap;
  heap.dynamic = options.dynamic || options.mode == Mode::Dynamic;
  const std::string wrong = plan::set_policy(options.policy, &heap.policy);
  if (!wrong.empty()) log::warn("STALLOC_POLICY: {}; the defaults are used", wrong);
  heap.policy.stitch = options.stitch;
  heap.plan_is_strict = options.plan_strict;
  heap.cross_stream = options.cross_stream;
  heap.events = event_tracking::order.load();
  if (options.mode == Mode::Trace) heap.on_free_complete = record_completed_free;
  return heap;
}

// The name of a mode that serves or records.
std::string_view mode_name(Mode mode) {
  if (mode == Mode::Trace) return "trace";
  return mode == Mode::Alloc ? "alloc" : "dynamic";
}

// Whether a signal reports a fault of the program. If a handler returned from it, the fault would occur again and
// again.
bool is_fault(int signal) {
  constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  return std::find(kFaults.begin(), kFaults.end(), signal) != kFaults.end();
}

trace::Device describe_device(int device) { return Session::cuda().describe_device(device); }

// Whether any request may be served from bytes that another stream freed.
bool crosses_streams(const Options& options) {
  if (options.mode == Mode::Alloc) return true;
  const bool serves = options.dynamic || options.mode == Mode::Dynamic;
  return serves && options.cross_stream != CrossStream::Never;
}

// Names all settings that were not understood in one warning.
void warn_of_refused(const Options& options) {
  std::string named;
  for (std::size_t i = 0; i < options.refused_count; ++i) {
    const Options::Refused& refused = options.refused[i];
    named +=
        fmt::format("{}{}={} (expected {})", i == 0 ? "" : ", ", refused.variable, refused.value, refused.accepted);
  }
  if (!named.empty()) log::warn("not understood, so that the default is used: {}", named);
}

}  // namespace

Session& Session::of_process() noexcept {
  alignas(Session) static std::byte storage[sizeof(Session)];
  static Session* const session = [] {
    const KeptErrno kept;
    auto* made = new (storage) Session(parse_options(environment::copy), process_cuda_, process_captures_);
    if (made->active()) made->prepare_process();
    return made;
  }();
  return *session;
}

Session::Session(const Options& options, Cuda& cuda, Captures& captures) noexcept : options_(options) {
  quick_.cuda.store(&cuda);
  quick_.captures.store(&captures);
  previous_ = current_.exchange(this);
  previous_heaps_ = heaps_.exchange(nullptr);
  log::set_level(options_.log_level);
  if (options_.mode == Mode::Auto) options_.mode = options_.plan.empty() ? Mode::Trace : Mode::Alloc;
  if (options_.mode == Mode::Off || options_.mode == Mode::Torch) return;
  if (crosses_streams(options_)) event_tracking::start();
  active_.store(true);
}

void Session::prepare_process() const noexcept {
  log::remember_standard_error();
  remember_start();
  remember_foreign_variables();
  if (options_.frameworks) set_framework_variables(options_.torch == TorchIntegration::Async);
  pthread_atfork(nullptr, nullptr, [] { Session::get().stop_in_child(); });
}

Session::~Session() {
  deactivate();
  event_tracking::stop();
  delete recorder_.load();
  delete heaps_.exchange(previous_heaps_);
  delete page_.load();
  refuses_.store(false);
  quick_.figures_wanted.store(false);
  quick_.cuda.store(&process_cuda_);
  quick_.captures.store(&process_captures_);
  current_.store(previous_);
}

void Session::first_use() noexcept {
  const KeptErrno kept;
  const NoCancellation guard;
  user_.store(::getpid());
  look_up();
  try {
    warn_of_refused(options_);
    warn_of_foreign_variables();
    if (options_.frameworks) warn_of_conflicting_variables(options_.torch == TorchIntegration::Async);
    if (!options_.statistics.empty()) create_statistics_page();
    if (options_.mode != Mode::Alloc && !options_.plan.empty())
      log::warn("STALLOC_PLAN is not used: STALLOC_MODE={} serves without a plan", mode_name(options_.mode));
    auto heaps = options_.mode != Mode::Trace || options_.dynamic ? create_heaps() : nullptr;
    auto recorder =
        options_.mode == Mode::Trace ? std::make_unique<record::Recorder>(options_, describe_device) : nullptr;
    if (options_.signal != 0) install_signal_handler(static_cast<int>(options_.signal));
    keep(std::move(heaps), std::move(recorder));
  } catch (const std::exception& error) {
    turn_off(error.what());
  }
}

void Session::create_statistics_page() noexcept {
  try {
    std::string why;
    // The page stays until the process ends.
    page_.store(StatisticsPage::create(options_.statistics, mode_name(options_.mode), &why).release());
    if (page_.load() == nullptr) log::warn("no statistics are shown: {}", why);
  } catch (const std::bad_alloc&) {
    // The program goes on without the page.
  }
}

void Session::turn_off(std::string_view why) noexcept {
  log::warn("{}; {}", why, refuses() ? serve::kStrictPlanFails : "stalloc is off");
  deactivate();
}

void Session::deactivate() noexcept {
  active_.store(false);
  event_tracking::order.store(nullptr);
  quick_.heaps.store(nullptr);
}

// All parts are kept, or none: a heap that had served a call before the session was turned off would not get the free.
void Session::keep(std::unique_ptr<Heaps> heaps, std::unique_ptr<record::Recorder> recorder) noexcept {
  recorder_.store(recorder.release());
  if (heaps == nullptr) return;
  heaps_.store(heaps.release());
  refuses_.store(false);
  if (serves_pytorch_.load()) heaps_.load()->keep_idle_memory();
  if (active() && recorder_.load() == nullptr) quick_.heaps.store(heaps_.load(), std::memory_order_release);
}

std::unique_ptr<Heaps> Session::create_heaps() {
  plan::Plan plan;
  if (options_.mode == Mode::Alloc) {
    if (options_.plan_strict) refuses_.store(true);  // until the heaps exist
    if (options_.plan.empty()) return turn_off("STALLOC_MODE=alloc needs STALLOC_PLAN"), nullptr;
    auto read = plan::read_plan(absolute_path(expand_path(options_.plan)));
    if (!read.ok()) return turn_off("plan refused: " + read.error), nullptr;
    plan = std::move(read.value);
  }
  if (!functions_ && cuda().symbol("cuInit") == nullptr) {
    return turn_off("no CUDA driver is loaded (libcuda.so.1)"), nullptr;
  }
  if (!functions_) return turn_off(std::string("the CUDA driver has no ") + missing_), nullptr;
  const bool rdma = options_.rdma == Rdma::On || (options_.rdma == Rdma::Auto && may_have_rdma());
  log::debug("memory is created {} GPUDirect RDMA (STALLOC_RDMA)", rdma ? "for" : "without");
  const serve::RealDriver driver(*functions_, captures().gate(), {rdma, serves_pytorch_.load()});
  return std::make_unique<Heaps>(std::move(plan), cuda(), driver, heap_options(options_), page_.load());
}

void Session::serve_pytorch() noexcept {
  serves_pytorch_.store(true);
  if (Heaps* heaps = known_heaps()) heaps->keep_idle_memory();
}

void Session::cuda_is_used() noexcept {
  cuda_used_.store(true, std::memory_order_relaxed);
  if (active()) look_up();
}

void Session::look_up() noexcept {
  std::call_once(looked_up_, [this] {
    const KeptErrno kept;
    functions_ = find_driver_functions(cuda().finder(), &missing_);
    cuda().find_all();
    if (options_.mode == Mode::Trace && options_.stacks) (void)record::call_stacks_available();
  });
}

record::Recorder* Session::recorder() noexcept {
  if (ready_.load(std::memory_order_acquire)) return recorder_.load(std::memory_order_relaxed);
  cuda_is_used();
  std::call_once(used_, [this] {
    first_use();
    ready_.store(true, std::memory_order_release);
  });
  return recorder_.load(std::memory_order_relaxed);
}

Heaps* Session::heaps() noexcept {
  (void)recorder();  // creates both parts
  return heaps_.load(std::memory_order_relaxed);
}

void Session::install_signal_handler(int number) {
  struct sigaction action {};
  const bool is_free = !is_fault(number) && sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_DFL;
  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int) { quick_.figures_wanted.store(true, std::memory_order_relaxed); };
  if (is_free && sigaction(number, &action, nullptr) == 0) return;
  log::warn("STALLOC_SIGNAL={} is not watched: the program uses it itself, or it cannot be handled", number);
}

void Session::log_requested_figures() noexcept {
  if (!quick_.figures_wanted.exchange(false)) return;
  if (Heaps* heaps = heaps_.load()) heaps->log_figures(/*always=*/true, /*wait=*/true);
}

void Session::stop_in_child() noexcept {
  if (cuda_used_.load(std::memory_order_relaxed)) deactivate();
}

void Session::finish() noexcept {
  if (user_.load() != ::getpid()) return;
  if (active_.load()) finish_parts();
  if (StatisticsPage* page = page_.load()) page->finish();
}

void Session::finish_parts() noexcept {
  if (record::Recorder* recorder = recorder_.load()) {
    recorder->limit_waits();  // the frees that are still pending are recorded next
    if (Heaps* heaps = heaps_.load()) heaps->notify_pending_frees_at_exit();
    recorder->close();
  }
  // Another thread may be in the middle of a call into the driver that never returns.
  if (Heaps* heaps = heaps_.load()) heaps->log_figures(/*always=*/false, /*wait=*/false);
}

}  // namespace stalloc
