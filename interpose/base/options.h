// SPDX-License-Identifier: Apache-2.0
// The library's settings, read once from the environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace stalloc {

enum class Mode : std::uint8_t { Auto, Trace, Alloc, Dynamic, Off, Torch };  // Torch: STAlloc's word for Off
enum class LogLevel : std::uint8_t { Silent, Error, Warn, Info, Debug };
// In the order of plan::CrossStream, which this layer may not include.
enum class CrossStream : std::uint8_t { Order, Grow, Never, Share };
// How PyTorch's tensors reach stalloc (interpose/torch/road.h).
enum class TorchRoad : std::uint8_t { Door, Async, Off };
enum class Rdma : std::uint8_t { Auto, On, Off };
using Path = std::string_view;  // a path or other text; refers to the result of `lookup`
using Switch = bool;
using Count = std::uint32_t;
using Bytes = std::uint64_t;  // with an optional suffix K, M, G or T (powers of 1024)

// One field for each line of options.def.
struct Options {
#define STALLOC_OPTION(field, variable, type, fallback, accepted, meaning) type field{};
#include "interpose/base/options.def"
#undef STALLOC_OPTION
  // The first variable whose value was not understood, with that value and the accepted ones, for one warning. Its
  // default is in force. Empty: there is none.
  std::string_view refused_variable;
  std::string_view refused_value;
  std::string_view refused_accepted;
};

// A row of the table, for documentation and tests.
struct OptionRow {
  std::string_view variable, fallback, accepted, meaning;
};
// All rows, in the order of options.def; static. Thread-safe.
std::span<const OptionRow> option_table() noexcept;

// Reads each variable of the table by `lookup` (like getenv: null if unset). Its results must stay valid and unchanged
// as long as the options are used, which refer to them. A value that is not understood leaves the default in force, and
// the first such variable is named in `refused_*`. Allocates nothing, never fails.
Options parse_options(const char* (*lookup)(const char* variable)) noexcept;

}  // namespace stalloc
