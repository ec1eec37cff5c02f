// SPDX-License-Identifier: Apache-2.0
// Importing allocation problems in MiniMalloc's CSV format (https://github.com/google/minimalloc).
#pragma once

#include <string>
#include <string_view>

#include "plan/outcome.h"
#include "plan/problem.h"

namespace stalloc::plan {

// Reads `id,lower,upper,size` rows, and of those that have one the numbers of the `stream` and of the call `stack`
// (else 0): a header names the columns, in any order, others are ignored (MiniMalloc's `start`/`begin` and `end` are
// taken for lower and upper too, `buffer_id` for id). Lifetimes are half-open, [lower, upper). A size of 0 takes no
// bytes. Requests come out by `lower`, rows with the same one in the order of the file. Errors are one line that names
// the line of the file. Pure.
Outcome<Problem> parse_csv(std::string_view text);

// True when the first line could be a header of this format.
bool is_csv(std::string_view text);

}  // namespace stalloc::plan
