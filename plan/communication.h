// SPDX-License-Identifier: Apache-2.0
// Libraries that share their buffers with other processes or register them with the network. CUDA can do that only with
// its own memory, so their requests are neither planned nor served.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace stalloc::plan {

// `path`: the file name of a library, with or without its folder.
constexpr bool is_communication_library(std::string_view path) {
  constexpr std::array<std::string_view, 6> kNames = {"libnccl", "libnvshmem", "libucx", "libuct", "libucp", "libmpi"};
  const std::string_view name = path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
  return std::any_of(kNames.begin(), kNames.end(), [name](std::string_view known) { return name.starts_with(known); });
}

}  // namespace stalloc::plan
