// SPDX-License-Identifier: Apache-2.0
// The layout of `--help`, for a terminal of 80 columns.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace stalloc::tool {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

}  // namespace stalloc::tool
