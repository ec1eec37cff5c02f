// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/leave.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "tests/e2e/host.h"

namespace stalloc::e2e {
namespace {

// The number of the system call in which a thread is; negative: none, or it cannot be known.
long system_call_of(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
  long number = -1;
  return file >> number ? number : -1;
}

}  // namespace

void leave_while_mapping() {
  must(cudaSetDevice(0), "cudaSetDevice");
  std::atomic<pid_t> thread{0};
  std::thread([&thread] {
    thread = gettid();
    void* memory = nullptr;
    cudaMallocAsync(&memory, std::size_t{64} << 20, nullptr);
    std::puts("host: the memory was mapped before the process ended");
  }).detach();
  while (thread == 0 || system_call_of(thread) != SYS_clock_nanosleep) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::exit(0);
}

}  // namespace stalloc::e2e
