// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include "interpose/base/kept_errno.h"
#include "interpose/base/quiet_writes.h"
#include "plan/characters.h"

namespace stalloc::log {
namespace {

constexpr const char* kPrefix[] = {"", "stalloc: error: ", "stalloc: warning: ", "stalloc: ", "stalloc: debug: "};
constexpr int kPipeWaitMs = 100;

std::atomic<LogLevel> current_level{LogLevel::Warn};
// What standard error was when it was remembered.
enum class Start { Unknown, Closed, Open };
Start start = Start::Unknown;
struct stat start_file {};
// True after a line was dropped because the pipe was full; the next line then does not wait.
std::atomic<bool> stuck{false};

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// A program may close standard error and open a data file that gets its number. So a line is written only if standard
// error is still the remembered file, or is a terminal, a file in append mode, or the same file as standard output.
bool takes_lines() noexcept {
  struct stat now {};
  if (::fstat(STDERR_FILENO, &now) != 0) return false;
  if (start == Start::Unknown || (start == Start::Open && same_file(now, start_file))) return true;
  if (S_ISCHR(now.st_mode) && ::isatty(STDERR_FILENO) == 1) return true;
  if (S_ISREG(now.st_mode) && (::fcntl(STDERR_FILENO, F_GETFL) & O_APPEND) != 0) return true;
  struct stat output {};
  return !S_ISSOCK(now.st_mode) && ::fstat(STDOUT_FILENO, &output) == 0 && same_file(now, output);
}

// A full pipe would block the program until somebody reads.
bool has_room() noexcept {
  pollfd error{STDERR_FILENO, POLLOUT, 0};
  // The first call does not wait, so a signal cannot interrupt it.
  const bool ready =
      ::poll(&error, 1, 0) == 1 || (!stuck.load(std::memory_order_relaxed) && ::poll(&error, 1, kPipeWaitMs) == 1);
  stuck.store(!ready, std::memory_order_relaxed);
  return ready;
}

// Replaces each character that could begin a line or control the terminal by `?`, since a text may come from a setting
// or the name of a file. Returns the bytes of the result.
std::size_t make_printable(char* text, std::size_t bytes) noexcept {
  std::size_t made = 0;
  for (std::string_view rest(text, bytes); !rest.empty();) {
    const plan::Character character = plan::first_character(rest);
    if (plan::is_printable(character)) {
      std::memmove(text + made, rest.data(), character.bytes);
      made += character.bytes;
    } else {
      text[made++] = '?';
    }
    rest.remove_prefix(character.bytes);
  }
  return made;
}

}  // namespace

void remember_standard_error() noexcept {
  start = ::fstat(STDERR_FILENO, &start_file) == 0 ? Start::Open : Start::Closed;
}

void set_level(LogLevel level) noexcept { current_level.store(level, std::memory_order_relaxed); }

bool enabled(LogLevel level) noexcept { return level <= current_level.load(std::memory_order_relaxed); }

void detail::write_line(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept {
  const KeptErrno kept;
  char line[kLineBytes + 32];
  const char* prefix = kPrefix[static_cast<std::size_t>(level)];
  const std::size_t prefix_bytes = std::strlen(prefix);
  std::memcpy(line, prefix, prefix_bytes);
  std::size_t text_bytes = 0;
  try {
    text_bytes = std::min(fmt::vformat_to_n(line + prefix_bytes, kLineBytes, format, args).size, kLineBytes);
  } catch (...) {
    return;  // a line that cannot be formatted is dropped
  }
  const std::size_t bytes = prefix_bytes + make_printable(line + prefix_bytes, text_bytes);
  line[bytes] = '\n';
  const QuietWrites quiet;
  if (takes_lines() && has_room()) {
    const ssize_t written = ::write(STDERR_FILENO, line, bytes + 1);
    (void)written;  // if the write fails, only this line is lost
  }
}

}  // namespace stalloc::log
