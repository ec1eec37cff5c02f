// SPDX-License-Identifier: Apache-2.0
// Every way out of a process, named by argv[1]; the output of exit handlers and the status must not change.
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace {

struct AtEnd {
  ~AtEnd() { std::puts("destructor of a static"); }
} at_end;

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::atexit([] { std::puts("atexit"); });
  std::at_quick_exit([] { std::puts("at_quick_exit"); });
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  const char* how = argv[1];
  if (std::strcmp(how, "exit") == 0) std::exit(11);
  if (std::strcmp(how, "quick_exit") == 0) std::quick_exit(12);
  if (std::strcmp(how, "_exit") == 0) _exit(13);
  if (std::strcmp(how, "abort") == 0) std::abort();
  if (std::strcmp(how, "terminate") == 0) throw std::runtime_error("nobody catches this");
  if (std::strcmp(how, "segv") == 0) raise(SIGSEGV);
  if (std::strcmp(how, "term") == 0) raise(SIGTERM);
  if (std::strcmp(how, "kill") == 0) raise(SIGKILL);
  if (std::strcmp(how, "thread") == 0) std::thread([] { std::exit(14); }).join();
  if (std::strcmp(how, "pthread_exit") == 0) {
    std::thread([] { std::puts("outlives main"); }).detach();
    pthread_exit(nullptr);
  }
  return 0;
}
