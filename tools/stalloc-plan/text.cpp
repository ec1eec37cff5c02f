// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/text.h"

#include <algorithm>
#include <cctype>

#include "plan/characters.h"

namespace stalloc::tool {
namespace {

// Returns the text with `other` in place of each character for which `keep` is false.
template <class Keep>
std::string replaced(std::string_view text, std::string_view other, const Keep& keep) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const plan::Character character = plan::first_character(text);
    out += keep(character) ? text.substr(0, character.bytes) : other;
    text.remove_prefix(character.bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return replaced(text, "?", plan::is_printable); }

std::string shell_word(std::string_view path) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_@%+=:,./-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!path.empty() && std::all_of(path.begin(), path.end(), is_plain)) return std::string(path);
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
  return quoted + "'";
}

std::string valid_utf8(std::string_view text) {
  return replaced(text, "\xef\xbf\xbd", [](const plan::Character& of) { return of.valid; });
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return std::to_string(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace stalloc::tool
