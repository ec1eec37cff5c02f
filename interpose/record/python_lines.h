// SPDX-License-Identifier: Apache-2.0
// Finds the lines of Python's instructions in the table of their code object.
#pragma once

#include <cstdint>
#include <span>

#include "interpose/record/python_layout.h"

namespace stalloc::record {

// Returns the line of instruction number `instruction`, counted in units of two bytes, of code that begins at
// `first_line`. 0: it has none, or the table ends before it. An instruction below 0, before the code has begun, has the
// first line. Reads no byte outside the table, whatever its content is. Pure.
std::uint32_t python_line(std::span<const std::uint8_t> table, PythonLines kind, std::int32_t first_line,
                          std::int32_t instruction) noexcept;

}  // namespace stalloc::record
