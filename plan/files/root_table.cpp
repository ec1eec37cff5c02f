// SPDX-License-Identifier: Apache-2.0
#include "plan/files/root_table.h"

#include <cstring>

namespace stalloc {
namespace {

constexpr std::uint16_t kMajorField = 4;  // the first field of any table
constexpr std::uint16_t kMinorField = 6;

// FlatBuffers store numbers as little-endian, as do all machines that this library is built for.
template <class Number>
std::optional<Number> read_number(std::span<const std::uint8_t> buffer, std::size_t at) {
  if (at > buffer.size() || buffer.size() - at < sizeof(Number)) return std::nullopt;
  Number number = 0;
  std::memcpy(&number, buffer.data() + at, sizeof number);
  return number;
}

// 0, the default, is not stored.
std::uint16_t read_version(std::span<const std::uint8_t> buffer, RootField field) {
  const auto at = find_root_field(buffer, field, sizeof(std::uint16_t));
  return at ? read_number<std::uint16_t>(buffer, *at).value_or(0) : std::uint16_t{0};
}

}  // namespace

std::optional<std::size_t> find_root_field(std::span<const std::uint8_t> buffer, RootField field, std::size_t bytes) {
  const auto offset = read_number<std::uint32_t>(buffer, field.root);
  if (!offset) return std::nullopt;
  const std::size_t table = field.root + *offset;
  const auto back = read_number<std::int32_t>(buffer, table);
  if (!back) return std::nullopt;
  const std::int64_t vtable = static_cast<std::int64_t>(table) - *back;
  if (vtable < 0) return std::nullopt;
  const auto vtable_bytes = read_number<std::uint16_t>(buffer, static_cast<std::size_t>(vtable));
  if (!vtable_bytes || field.vtable + sizeof(std::uint16_t) > *vtable_bytes) return std::nullopt;
  const auto in_table = read_number<std::uint16_t>(buffer, static_cast<std::size_t>(vtable) + field.vtable);
  if (!in_table || *in_table == 0) return std::nullopt;
  const std::size_t at = table + *in_table;
  if (at > buffer.size() || buffer.size() - at < bytes) return std::nullopt;
  return at;
}

std::string find_other_version(std::span<const std::uint8_t> buffer, std::size_t root, const std::string& kind,
                               std::uint16_t major) {
  const RootField field{root, kMajorField};
  const std::uint16_t found = read_version(buffer, field);
  if (found == major || !find_root_field(buffer, field, sizeof found)) return {};
  return kind + " of format version " + std::to_string(found) + "." +
         std::to_string(read_version(buffer, {root, kMinorField})) + "; this stalloc reads version " +
         std::to_string(major);
}

}  // namespace stalloc
