// SPDX-License-Identifier: Apache-2.0
// The root table of a FlatBuffer, read before the buffer is verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace stalloc {

// The position of a field in the root table of a FlatBuffer.
struct RootField {
  std::size_t root = 0;      // where the offset of the root table lies: 0, or 4 after a size prefix
  std::uint16_t vtable = 0;  // the field's number in generated code: Table::VT_FIELD
};

// Returns where `field`, of `bytes` bytes, begins in `buffer`. Nothing if it is not present, or if the buffer is too
// damaged to tell. Pure.
std::optional<std::size_t> find_root_field(std::span<const std::uint8_t> buffer, RootField field, std::size_t bytes);

// Both formats begin with `version_major` and `version_minor`, 16 bits each. If the buffer has another major version
// than `major`, returns one line that names its version; `kind` begins the line. Empty if the version is `major`, or if
// the buffer is too damaged to tell. Another major version may have a layout that does not resemble this format at all,
// so call this before any other check. Pure.
std::string find_other_version(std::span<const std::uint8_t> buffer, std::size_t root, const std::string& kind,
                               std::uint16_t major);

}  // namespace stalloc
