// SPDX-License-Identifier: Apache-2.0
// Log lines on standard error. Each is one write(2), without allocation, locks or stdio. All functions are thread-safe
// unless they say otherwise, throw nothing, raise no signal and keep errno. A line waits at most a tenth of a second
// for a full pipe, and is dropped if the program has replaced standard error by something unsuitable, such as a data
// file (docs/environment.md, "Log lines").
#pragma once

#include <fmt/format.h>

#include <cstddef>

#include "interpose/base/options.h"

namespace stalloc::log {

// Remembers which file standard error is, so that a later replacement by the program is recognized. Call it while the
// library is being loaded; without it lines are written to whatever standard error is. Not thread-safe.
void remember_standard_error() noexcept;

// Lines above this level are not written. The level is `Warn` at first.
void set_level(LogLevel level) noexcept;
bool enabled(LogLevel level) noexcept;

inline constexpr std::size_t kLineBytes = 1536;  // longer lines are cut

namespace detail {
// Formats and writes a line; all formatting is compiled once, in log.cpp.
void write_line(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;

template <class... Args>
void line(LogLevel level, bool always, fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (always || enabled(level)) write_line(level, format, fmt::make_format_args(args...));
}
}  // namespace detail

// Each writes one line with the prefix of its level, if that level is enabled. Characters that could begin another line
// or control a terminal are shown as `?`. A text that cannot be formatted is dropped.
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

// As `info`; with `always`, the line is written whatever the level is, since the user asked for it.
template <class... Args>
void figures(bool always, fmt::format_string<Args...> format, Args&&... args) noexcept {
  detail::line(LogLevel::Info, always, format, std::forward<Args>(args)...);
}

}  // namespace stalloc::log
