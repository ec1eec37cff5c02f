// SPDX-License-Identifier: Apache-2.0
// A checksum over every byte of a FlatBuffer, kept in a field of the buffer's root table. Fields that are added to a
// format later are covered as well, even those of a newer writer that this reader does not know.
#pragma once

#include <cstdint>
#include <span>

#include "plan/files/root_table.h"

namespace stalloc {

// Stores in `field`, of 8 bytes, the checksum of all bytes of `buffer`; the field's own count as zeros. Pre: the field
// is stored (encoders give it a value that is not its default first).
void store_byte_checksum(std::span<std::uint8_t> buffer, RootField field);

// True when `field` is stored and no byte of `buffer` has changed since `store_byte_checksum`. `buffer` is changed for
// the time of the call and is as before when it returns.
bool byte_checksum_matches(std::span<std::uint8_t> buffer, RootField field);

}  // namespace stalloc
