// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// Allocates, exports and frees device memory. Returns the name of the first error, or of success.
__attribute__((visibility("default"))) const char* share_a_buffer(std::size_t bytes);
