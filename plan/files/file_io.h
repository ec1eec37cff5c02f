// SPDX-License-Identifier: Apache-2.0
// Reads and replaces whole files. Errors name the path and the system's reason, in one line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/outcome.h"

namespace stalloc::plan {

// Reads all of `path`, which may be a pipe. Thread-safe.
Outcome<std::vector<std::uint8_t>> read_file(const std::string& path);

// Reads all of a regular file, and never waits for anything but the file system. A file that is not regular, or has
// more than `most_bytes`, is an error and is not opened. `find_defect` gets the beginning of the file (64 KiB, or all
// of a smaller file) before the rest is read; if it returns a text that is not empty, this is the error. Thread-safe.
Outcome<std::vector<std::uint8_t>> read_regular_file(const std::string& path, std::uint64_t most_bytes,
                                                     std::string (*find_defect)(std::span<const std::uint8_t> start));

// Writes `bytes` to a file beside `path` and renames it to `path`, so that `path` is the old file or the complete new
// one, also after a crash of the machine. A symbolic link is kept, and the file to which it points is replaced. A file
// that is not regular (a pipe, /dev/stdout) is written in place. Returns the error; empty: success.
std::string replace_file(const std::string& path, std::span<const std::uint8_t> bytes);

}  // namespace stalloc::plan
