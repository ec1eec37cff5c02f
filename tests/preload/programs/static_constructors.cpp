// SPDX-License-Identifier: Apache-2.0
// Static constructors that allocate, start threads, look symbols up and change the environment before main; exit
// handlers that do the same after it.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

bool dlsym_works() { return dlsym(RTLD_DEFAULT, "free") != nullptr; }

struct Early {
  Early() : text(1000, 'x') {
    std::thread([this] { found_in_thread = dlsym_works(); }).join();
    found = dlsym_works();
    setenv("STALLOC_TEST_EARLY", "set before main", 1);
  }
  ~Early() { std::printf("destructor: %zu %d\n", text.size(), dlsym_works()); }
  std::string text;
  bool found = false;
  bool found_in_thread = false;
} early;

__attribute__((constructor(101))) void very_early() {
  std::atexit([] { std::printf("last handler: %d\n", dlsym_works()); });
}

}  // namespace

int main() {
  std::printf("early: %d %d %s\n", early.found, early.found_in_thread, std::getenv("STALLOC_TEST_EARLY"));
  clearenv();
  std::atexit([] { std::printf("handler: %d\n", dlsym_works()); });
  return 0;
}
