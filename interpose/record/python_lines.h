// SPDX-License-Identifier: Apache-2.0
// The lines of Python's instructions, from the table that a code object has of them.
#pragma once

#include <cstdint>
#include <span>

#include "interpose/record/python_layout.h"

namespace stalloc::record {

// The line of instruction number `instruction`, counted in units of two bytes, of code that begins at `first_line`; 0:
// it has none, or the table does not reach it. An instruction below 0, before the code has begun, is of the first line.
// Reads no byte outside the table, whatever is in it. Pure.
std::uint32_t python_line(std::span<const std::uint8_t> table, PythonLines kind, std::int32_t first_line,
                          std::int32_t instruction) noexcept;

}  // namespace stalloc::record
