// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kPause = std::chrono::milliseconds(200);
constexpr std::size_t kMostWords = 60;  // of 80 columns

bool can_erase_lines() {
  const char* terminal = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

Progress::Progress() {
  if (!can_erase_lines()) return;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    // Without a thread there is no progress line, but the work goes on.
  }
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::begin(const std::string& what) {
  const std::lock_guard lock(mutex_);
  what_ = printable(what);
  share_ = -1;
}

void Progress::at(double share) {
  const std::lock_guard lock(mutex_);
  share_ = share;
}

void Progress::run() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (ended_.wait_for(lock, kPatience, [this] { return over_; })) return;
  do {
    draw(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  } while (!ended_.wait_for(lock, kPause, [this] { return over_; }));
}

void Progress::draw(double seconds) {
  const std::string percent = share_ < 0 ? "" : fmt::format(" {:.0f} %", 100 * share_);
  fmt::print(stderr, "\r\033[K{:.{}}{} ({:.0f} s)", what_, kMostWords, percent, seconds);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace stalloc::tool
