// SPDX-License-Identifier: Apache-2.0
// A checksum over every byte of a FlatBuffer, kept in a field of the buffer's root table. It also covers fields that
// are added to a format later, even those of a newer writer that this reader does not know.
#pragma once

#include <cstdint>
#include <span>

#include "plan/files/root_table.h"

namespace stalloc {

// Stores in `field`, of 8 bytes, the checksum of all bytes of `buffer`, with the field's own bytes taken as zeros. Pre:
// the field is present in the buffer (encoders first give it a value that is not its default).
void store_byte_checksum(std::span<std::uint8_t> buffer, RootField field);

// True if `field` is present and no byte of `buffer` has changed since `store_byte_checksum`. `buffer` is changed
// during the call and restored when it returns.
bool byte_checksum_matches(std::span<std::uint8_t> buffer, RootField field);

}  // namespace stalloc
