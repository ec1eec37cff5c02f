#include "interpose/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace stalloc::log {
namespace {
std::atomic<LogLevel> current_level{LogLevel::Warn};

constexpr const char* kPrefix[] = {"", "stalloc: error: ", "stalloc: warning: ", "stalloc: ", "stalloc: debug: "};
}  // namespace

void set_level(LogLevel level) noexcept { current_level.store(level, std::memory_order_relaxed); }

bool enabled(LogLevel level) noexcept { return level <= current_level.load(std::memory_order_relaxed); }

void detail::write_line(LogLevel level, const char* text, std::size_t bytes) noexcept {
  char line[kLineBytes + 32];
  const char* prefix = kPrefix[static_cast<std::size_t>(level)];
  const std::size_t prefix_bytes = std::strlen(prefix);
  std::memcpy(line, prefix, prefix_bytes);
  std::memcpy(line + prefix_bytes, text, bytes);
  line[prefix_bytes + bytes] = '\n';
  const int saved = errno;
  const ssize_t written = ::write(STDERR_FILENO, line, prefix_bytes + bytes + 1);
  (void)written;  // a host that closed its standard error loses the line, nothing else
  errno = saved;
}

}  // namespace stalloc::log
