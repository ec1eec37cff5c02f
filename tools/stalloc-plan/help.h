// SPDX-License-Identifier: Apache-2.0
// Lays out the text of `--help` for a terminal of 80 columns.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace stalloc::tool {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  // The name of the option's value, without CLI11's description of what it accepts: the option's own text says that.
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

}  // namespace stalloc::tool
