// SPDX-License-Identifier: Apache-2.0
// The library's functions for a door: its side of door.h.
#pragma once

#include "interpose/torch/door.h"

namespace stalloc::torch {

// Valid for the life of the process. Thread-safe.
const stalloc_door_library& door_library() noexcept;

}  // namespace stalloc::torch
