// SPDX-License-Identifier: Apache-2.0
// What a session does in each mode, and when something is missing that the mode needs.
#include "interpose/session/session.h"

#include <cuda.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): raise of a POSIX signal

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "catch.h"
#include "driver.h"
#include "settings.h"
#include "tests/child.h"
#include "tests/folder.h"

using namespace stalloc;
using namespace stalloc::test;
namespace fs = std::filesystem;

namespace {

class Process {
 public:
  explicit Process(const Options& options) : session(options, cuda, captures) { REQUIRE(cuInit(0) == CUDA_SUCCESS); }

  Cuda cuda{&find_function};
  Captures captures{cuda};
  Session session;
};

// A thread that records a call keeps the recorder's lock while the driver names the device. It does not go on before
// `go_on`, or before a time at which a wait for it counts as endless.
std::atomic<bool> is_inside{false};
std::atomic<bool> may_go_on{false};
std::atomic<bool> is_endless{false};
CUresult name_slowly(char* /*name*/, int /*length*/, CUdevice /*device*/) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  is_inside = true;
  while (!may_go_on && !is_endless) {
    is_endless = std::chrono::steady_clock::now() > end;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

// Frees blocks of the primary context's heap on another stream's behalf: they are recorded once the work is complete.
void leave_pending_frees(Heaps& heaps, int count) {
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  serve::Heap* heap = heaps.find_or_create(context);
  REQUIRE(heap != nullptr);
  const StreamKey stream = make_stream_key(CU_STREAM_LEGACY, false);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < count; ++i) {
    const auto block = heap->allocate(2 << 20, stream, nullptr);
    REQUIRE(block);
    blocks.push_back(*block);
  }
  for (const CUdeviceptr block : blocks) REQUIRE(heap->free_when_complete(block, stream, stream) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("the hooks ask the session that a test made, and its CUDA", "[session]") {
  const Process process(settings({{"STALLOC_MODE", "dynamic"}}));
  CHECK(&Session::get() == &process.session);
  CHECK(&Session::cuda() == &process.cuda);
  CHECK(&Session::captures() == &process.captures);
}

TEST_CASE("a session that is off has no parts", "[session]") {
  const Process process(settings({{"STALLOC_MODE", "off"}}));
  CHECK_FALSE(process.session.active());
  CHECK(Session::active_heaps() == nullptr);
  CHECK(Session::fast_path_heaps() == nullptr);
}

TEST_CASE("without a plan there are heaps from the first use on", "[session]") {
  Process process(settings({{"STALLOC_MODE", "dynamic"}}));
  CHECK(process.session.active());
  CHECK(Session::known_heaps() == nullptr);
  CHECK(Session::fast_path_heaps() == nullptr);
  Heaps* heaps = process.session.heaps();
  REQUIRE(heaps != nullptr);
  CHECK(process.session.recorder() == nullptr);
  CHECK(Session::known_heaps() == heaps);
  CHECK(Session::fast_path_heaps() == heaps);
  CHECK(Session::active_heaps() == heaps);
}

TEST_CASE("the first use of CUDA changes no errno", "[session]") {
  const Folder folder;  // is there already, which is an error of mkdir
  Process process(settings({{"STALLOC_MODE", "dynamic"}, {"STALLOC_STATISTICS", folder.path().string()}}));
  errno = 7;
  Heaps* const heaps = process.session.heaps();
  CHECK(errno == 7);
  CHECK(heaps != nullptr);
}

TEST_CASE("the statistics page of a session that was turned off is removed at its end", "[session]") {
  const Folder folder;
  const std::string pages = folder / "pages";
  Process process(
      settings({{"STALLOC_MODE", "alloc"}, {"STALLOC_PLAN", folder / "none.fb"}, {"STALLOC_STATISTICS", pages}}));
  CHECK(process.session.heaps() == nullptr);
  CHECK_FALSE(process.session.active());
  CHECK_FALSE(fs::is_empty(pages));
  process.session.finish();
  CHECK(fs::is_empty(pages));
}

TEST_CASE("a session that records serves too, but not only", "[session]") {
  const Folder folder;
  Process process(settings({{"STALLOC_MODE", "trace"}, {"STALLOC_TRACE", folder / "trace.fb"}}));
  CHECK(process.session.recorder() != nullptr);
  CHECK(process.session.heaps() != nullptr);
  CHECK(Session::fast_path_heaps() == nullptr);
}

TEST_CASE("a session that records alone has no heaps", "[session]") {
  const Folder folder;
  Process process(
      settings({{"STALLOC_MODE", "trace"}, {"STALLOC_DYNAMIC", "off"}, {"STALLOC_TRACE", folder / "trace.fb"}}));
  CHECK(process.session.recorder() != nullptr);
  CHECK(process.session.heaps() == nullptr);
}

TEST_CASE("a driver without virtual memory turns the session off, not the program's CUDA", "[session]") {
  const Replaced none("cuMemAddressReserve", nullptr);
  Process process(settings({{"STALLOC_MODE", "dynamic"}}));
  CHECK(process.session.active());
  CHECK(process.session.heaps() == nullptr);
  CHECK_FALSE(process.session.active());
  CHECK_FALSE(Session::refuses());
}

TEST_CASE("a plan that cannot be read turns the session off; a strict one refuses all requests", "[session]") {
  const bool strict = GENERATE(false, true);
  const bool named = GENERATE(false, true);
  std::map<std::string, std::string> wanted = {{"STALLOC_MODE", "alloc"},
                                               {"STALLOC_PLAN_STRICT", strict ? "on" : "off"}};
  if (named) wanted["STALLOC_PLAN"] = "/nonexistent/plan.fb";
  {
    Process process(settings(wanted));
    CHECK(process.session.heaps() == nullptr);
    CHECK_FALSE(process.session.active());
    CHECK(Session::refuses() == strict);
  }
  CHECK_FALSE(Session::refuses());
}

TEST_CASE("a child of fork goes on where its parent had not used CUDA", "[session]") {
  Process process(settings({{"STALLOC_MODE", "dynamic"}}));
  process.session.stop_in_child();
  CHECK(process.session.active());
  CHECK(process.session.heaps() != nullptr);
}

TEST_CASE("a child of fork only forwards where its parent had used CUDA", "[session]") {
  Process process(settings({{"STALLOC_MODE", "dynamic"}}));
  REQUIRE(process.session.heaps() != nullptr);
  process.session.stop_in_child();
  CHECK_FALSE(process.session.active());
  CHECK(Session::fast_path_heaps() == nullptr);
  CHECK(Session::active_heaps() == nullptr);
  CHECK(Session::known_active_heaps() == nullptr);
}

TEST_CASE("a child of _Fork leaves its parent's trace and figures alone at its exit", "[session]") {
  const Folder folder;
  const Folder figures;
  Process process(settings({{"STALLOC_MODE", "trace"},
                            {"STALLOC_TRACE", folder / "trace.fb"},
                            {"STALLOC_STATISTICS", figures.path().string()}}));
  record::TracedCall call;
  call.kind = trace::EventKind::AllocAsync;
  REQUIRE(process.session.recorder() != nullptr);
  process.session.recorder()->record(call);
  CHECK(holds_in_child([&] {
    process.session.finish();
    return fs::is_empty(folder.path()) && !fs::is_empty(figures.path());
  }));
  process.session.finish();
  CHECK(trace::read_trace(folder / "trace.fb").value.closed);
  CHECK(fs::is_empty(figures.path()));
}

TEST_CASE("the exit does not wait for a thread that keeps the recorder's lock", "[session]") {
  const Folder folder;
  {
    const Replaced name("cuDeviceGetName", &name_slowly);
    is_inside = may_go_on = is_endless = false;
    Process process(
        settings({{"STALLOC_MODE", "trace"}, {"STALLOC_DYNAMIC", "on"}, {"STALLOC_TRACE", folder / "trace.fb"}}));
    record::Recorder* recorder = process.session.recorder();
    REQUIRE(recorder != nullptr);
    leave_pending_frees(*process.session.heaps(), 3);
    std::thread inside([&] {
      record::TracedCall call;
      call.kind = trace::EventKind::AllocAsync;
      recorder->record(call);
    });
    while (!is_inside) std::this_thread::yield();
    process.session.finish();
    CHECK_FALSE(is_endless);
    may_go_on = true;
    inside.join();
  }
  CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
  cuCtxSetCurrent(nullptr);
  CHECK_FALSE(trace::read_trace(folder / "trace.fb").value.closed);
}

TEST_CASE("a signal is answered once, at the next request", "[session]") {
  Process process(settings({{"STALLOC_MODE", "dynamic"}, {"STALLOC_SIGNAL", std::to_string(SIGUSR2)}}));
  Heaps* heaps = process.session.heaps();
  REQUIRE(Session::fast_path_heaps() == heaps);
  REQUIRE(::raise(SIGUSR2) == 0);
  CHECK(Session::figures_wanted());
  CHECK(Session::fast_path_heaps() == nullptr);  // the request goes where the signal is answered
  process.session.log_requested_figures();
  CHECK_FALSE(Session::figures_wanted());
  CHECK(Session::fast_path_heaps() == heaps);
  ::signal(SIGUSR2, SIG_DFL);
}

TEST_CASE("signals of faults, and those that cannot be handled, are left alone", "[session]") {
  const int number = GENERATE(SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGKILL, SIGSTOP);
  // The tests' own handlers of faults are set aside, so that nothing but the signal itself is in the way.
  struct sigaction own {};
  struct sigaction none {};
  struct sigaction after {};
  ::sigaction(number, nullptr, &own);
  ::sigaction(number, &none, nullptr);
  {
    Process process(settings({{"STALLOC_MODE", "dynamic"}, {"STALLOC_SIGNAL", std::to_string(number)}}));
    REQUIRE(process.session.heaps() != nullptr);
    ::sigaction(number, nullptr, &after);
  }
  ::sigaction(number, &own, nullptr);
  CHECK(after.sa_handler == SIG_DFL);
}

TEST_CASE("a signal that the program handles itself is left to it", "[session]") {
  ::signal(SIGUSR2, SIG_IGN);
  Process process(settings({{"STALLOC_MODE", "dynamic"}, {"STALLOC_SIGNAL", std::to_string(SIGUSR2)}}));
  REQUIRE(process.session.heaps() != nullptr);
  REQUIRE(::raise(SIGUSR2) == 0);
  CHECK_FALSE(Session::figures_wanted());
  ::signal(SIGUSR2, SIG_DFL);
}
