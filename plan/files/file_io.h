// Whole files, read and replaced. Errors name the path and the system's reason, in one line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/outcome.h"

namespace stalloc::plan {

// Reads all of `path`, which may be a pipe. Thread-safe.
Outcome<std::vector<std::uint8_t>> read_file(const std::string& path);

// Writes `bytes` beside `path` and renames the result over it, so that `path` is the old file or the complete new one.
// Something that is not a regular file (a pipe, /dev/stdout) is written in place. Returns the error; empty: done.
std::string replace_file(const std::string& path, std::span<const std::uint8_t> bytes);

}  // namespace stalloc::plan
