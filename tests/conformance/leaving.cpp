// SPDX-License-Identifier: Apache-2.0
// A process that ends while another of its threads is inside a request.
#include "tests/conformance/leaving.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr int kRequestMs = 8'000;  // how long a request takes in the process that ends
constexpr int kSoonMs = 4'000;
constexpr int kStatus = 7;

// This program's environment with another trace file. With `slow`, mapping takes long on simcuda, so that requests take
// long too.
std::vector<std::string> environment_of_leaver(bool slow) {
  std::vector<std::string> all{fmt::format("SIMCUDA_SLOW_MAP_US={}", slow ? kRequestMs * 1000 : 0)};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!text.starts_with("SIMCUDA_SLOW_MAP_US=") && !text.starts_with("STALLOC_TRACE=")) all.push_back(text);
  }
  all.emplace_back("STALLOC_TRACE=leaving.fb");
  return all;
}

// Waits for the end of a process, and kills it when it does not end. Returns how it ended.
std::string end_of(pid_t child) {
  const auto began = std::chrono::steady_clock::now();
  const auto took_more_than = [&](int milliseconds) {
    return std::chrono::steady_clock::now() - began > std::chrono::milliseconds(milliseconds);
  };
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (took_more_than(2 * kRequestMs)) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return "it does not end";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const std::string how = WIFEXITED(status)     ? fmt::format("status {}", WEXITSTATUS(status))
                          : WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                                : "something else";
  return how + (took_more_than(kSoonMs) ? ", late" : ", at once");
}

// Starts this program once more as the process that ends. Returns how it ended.
std::string leave(const char* how) {
  std::vector<std::string> variables = environment_of_leaver(std::string(how).ends_with("beside a request"));
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe";
  std::string option = "--leave";
  std::string value = how;
  char* arguments[] = {program.data(), option.data(), value.data(), nullptr};
  pid_t child = 0;
  const int failed = posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment.data());
  return failed != 0 ? "not started" : end_of(child);
}

}  // namespace

void leaving(Machine&, Report& report, std::uint64_t) {
  for (const char* how : {"exit beside a request", "exit beside a free that waits", "quick_exit beside a request"}) {
    report.fact(std::string("a process leaves by ") + how, leave(how));
  }
}

[[noreturn]] void leave_beside(const Driver& driver, const std::string& how) {
  // Never destroyed: threads use them while the process ends.
  auto& machine = *new Machine(driver);
  auto& begun = *new std::atomic<bool>(false);
  const CUstream stream = machine.make_stream();
  if (how == "exit beside a free that waits") {
    const CUdeviceptr at = machine.allocate_plain(kMiB);
    new Gate(machine, stream, kRequestMs);
    std::thread([&machine, &begun, at] {
      machine.join();
      begun = true;
      machine.cuda.cuMemFree(at);
    }).detach();
  } else {
    std::thread([&machine, &begun, stream] {
      machine.join();
      begun = true;
      for (std::size_t bytes = kMiB;; bytes += kMiB) {
        CUdeviceptr at = 0;
        if (machine.cuda.cuMemAllocAsync(&at, bytes, stream) != CUDA_SUCCESS) break;
      }
    }).detach();
  }
  while (!begun) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the thread is surely inside its request
  if (how.starts_with("quick_exit")) std::quick_exit(kStatus);
  std::exit(kStatus);
}

}  // namespace stalloc::conformance
