// SPDX-License-Identifier: Apache-2.0
// Lines on standard error, each one write(2): no allocation, no lock, no stdio. Thread-safe. A line raises no signal,
// waits a tenth of a second at most for a full pipe, and is dropped where standard error has become something else.
#pragma once

#include <fmt/format.h>
#include <cstddef>

#include "interpose/base/options.h"

namespace stalloc::log {

// Notes what standard error is, to recognise later whether the program has replaced it. Call when the library is
// loaded; without it every descriptor of that number takes lines. Not thread-safe.
void remember_standard_error() noexcept;

void set_level(LogLevel level) noexcept;
bool enabled(LogLevel level) noexcept;

inline constexpr std::size_t kLineBytes = 1536;  // longer lines are cut

namespace detail {
void write_line(LogLevel level, const char* text, std::size_t bytes) noexcept;

template <class... Args>
void line(LogLevel level, bool always, fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (!always && !enabled(level)) return;
  char text[kLineBytes];
  try {
    const auto end = fmt::format_to_n(text, sizeof text, format, std::forward<Args>(args)...);
    write_line(level, text, end.size < sizeof text ? end.size : sizeof text);
  } catch (...) {
    // A line that cannot be formatted is dropped.
  }
}
}  // namespace detail

template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) noexcept {
  detail::line(LogLevel::Error, false, format, std::forward<Args>(args)...);
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) noexcept {
  detail::line(LogLevel::Warn, false, format, std::forward<Args>(args)...);
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) noexcept {
  detail::line(LogLevel::Info, false, format, std::forward<Args>(args)...);
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) noexcept {
  detail::line(LogLevel::Debug, false, format, std::forward<Args>(args)...);
}

// As info; `always`: the user asked for it, whatever the level.
template <class... Args>
void figures(bool always, fmt::format_string<Args...> format, Args&&... args) noexcept {
  detail::line(LogLevel::Info, always, format, std::forward<Args>(args)...);
}

}  // namespace stalloc::log
