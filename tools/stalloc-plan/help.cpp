// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/help.h"

#include <sstream>

namespace stalloc::tool {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kIndent = 28;

// "  name" and, from column kIndent on, `text` in lines that fit; it begins below a name that is long.
std::string entry(const std::string& name, const std::string& text) {
  std::string out = "  " + name;
  std::size_t at = out.size();
  if (at + 2 > kIndent) {
    out += '\n';
    at = 0;
  }
  out.append(kIndent - at, ' ');
  at = kIndent;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (at > kIndent && at + 1 + word.size() > kColumns) {
      out += '\n';
      out.append(kIndent, ' ');
      at = kIndent;
    } else if (at > kIndent) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out + '\n';
}

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  return entry(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const std::string type = option->get_type_size() == 0 ? "" : option->get_type_name();
  return type.empty() ? "" : " " + type.substr(0, type.find(':'));
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return entry(command->get_name(), command->get_description());
}

}  // namespace stalloc::tool
