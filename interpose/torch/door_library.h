// SPDX-License-Identifier: Apache-2.0
// What the library offers to a door: its side of door.h.
#pragma once

#include "interpose/torch/door.h"

namespace stalloc::torch {

// Valid for good.
const stalloc_door_library& door_library() noexcept;

}  // namespace stalloc::torch
