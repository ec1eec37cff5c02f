// SPDX-License-Identifier: Apache-2.0
// Reads allocation problems in MiniMalloc's CSV format (https://github.com/google/minimalloc).
#pragma once

#include <string_view>

#include "plan/expected.h"
#include "plan/problem.h"

namespace stalloc::plan {

// Reads rows of `id,lower,upper,size` and, if the columns exist, the numbers of the `stream` and of the call `stack`
// (otherwise 0). A header names the columns, in any order; other columns are ignored. MiniMalloc's `start` or `begin`
// and `end` are accepted for lower and upper, and `buffer_id` for id. Lifetimes are half-open, [lower, upper). A size
// of 0 takes no bytes. Requests are returned in the order of `lower`, and those with the same value in the order of the
// file. Errors are one line that names the line of the file. Pure.
Expected<Problem> parse_csv(std::string_view text);

}  // namespace stalloc::plan
