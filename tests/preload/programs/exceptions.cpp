// SPDX-License-Identifier: Apache-2.0
// C++ exceptions through frames, threads, nested handlers and a library boundary (std::stoi throws inside libstdc++).
// A preload that brought its own _Unwind_* would break them.
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Noisy {
  explicit Noisy(int id) : id_(id) {}
  ~Noisy() { destroyed += id_; }
  Noisy(const Noisy&) = delete;
  Noisy& operator=(const Noisy&) = delete;
  static thread_local int destroyed;

 private:
  int id_;
};
thread_local int Noisy::destroyed = 0;

void descend(int depth) {
  const Noisy noisy(depth);
  if (depth == 0) throw std::runtime_error("bottom");
  descend(depth - 1);
}

int catch_it(int depth) {
  try {
    descend(depth);
  } catch (const std::exception& error) {
    return std::string(error.what()) == "bottom" ? Noisy::destroyed : -1;
  }
  return -2;
}

const int from_static_constructor = catch_it(4);

}  // namespace

int main() {
  std::printf("static constructor: %d\n", from_static_constructor);
  Noisy::destroyed = 0;
  std::printf("main: %d\n", catch_it(100));
  std::vector<int> results(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([i, &results] { results[i] = catch_it(i * 10); });
  for (std::thread& thread : threads) thread.join();
  for (const int result : results) std::printf("thread: %d\n", result);
  try {
    try {
      static_cast<void>(std::stoi("not a number"));
    } catch (...) {
      std::throw_with_nested(std::logic_error("outer"));
    }
  } catch (const std::exception& outer) {
    try {
      std::rethrow_if_nested(outer);
    } catch (const std::invalid_argument& inner) {
      std::printf("nested: %s in %s\n", inner.what(), outer.what());
    }
  }
  std::exception_ptr carried;
  std::thread([&carried] {
    try {
      descend(3);
    } catch (...) {
      carried = std::current_exception();
    }
  }).join();
  try {
    std::rethrow_exception(carried);
  } catch (const std::runtime_error& error) {
    std::printf("carried: %s\n", error.what());
  }
  return 0;
}
