// SPDX-License-Identifier: Apache-2.0
// The library's settings, read once from the environment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "plan/cross_stream.h"

namespace stalloc {

enum class Mode : std::uint8_t { Auto, Trace, Alloc, Dynamic, Off, Torch };  // Torch: STAlloc's word for Off
enum class LogLevel : std::uint8_t { Silent, Error, Warn, Info, Debug };
using plan::CrossStream;
// How PyTorch's tensors reach stalloc (interpose/torch/integration.h).
enum class TorchIntegration : std::uint8_t { Door, Async, Off };
enum class Rdma : std::uint8_t { Auto, On, Off };
using Path = std::string_view;  // a path or other text; refers to the result of `lookup`
using Switch = bool;
using Count = std::uint32_t;
using Bytes = std::uint64_t;  // as plan::parse_size reads them

inline constexpr std::string_view kOptionVariables[] = {
#define STALLOC_OPTION(field, variable, type, fallback, accepted, meaning) variable,
#include "interpose/base/options.def"
#undef STALLOC_OPTION
};

// One field for each line of options.def.
struct Options {
#define STALLOC_OPTION(field, variable, type, fallback, accepted, meaning) type field{};
#include "interpose/base/options.def"
#undef STALLOC_OPTION
  // The variables whose values were not understood (their defaults are in force), for one warning.
  struct Refused {
    std::string_view variable, value, accepted;
  };
  std::array<Refused, std::size(kOptionVariables)> refused{};
  std::size_t refused_count = 0;
};

// A row of the table, for documentation and tests.
struct OptionRow {
  std::string_view variable, fallback, accepted, meaning;
};
// All rows, in the order of options.def; static. Thread-safe.
std::span<const OptionRow> option_table() noexcept;

// Reads each variable of the table by `lookup` (like getenv: null if unset). Its results must stay valid and unchanged
// as long as the options are used, which refer to them. Values that are not understood leave the defaults in force and
// are named in `refused`. Allocates nothing, never fails.
Options parse_options(const char* (*lookup)(const char* variable)) noexcept;

}  // namespace stalloc
