// SPDX-License-Identifier: Apache-2.0
// Reads and replaces whole files. Errors name the path and the system's reason, in one line.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "plan/expected.h"

namespace stalloc::plan {

struct ReadLimits {
  std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max() / 2;  // a larger file is an error
  // Called with the beginning of the file (64 KiB, or all of a smaller file) before the rest is read. A text that it
  // returns is the error; empty: the file may be read. Null: any file may be read.
  std::string (*find_defect)(std::span<const std::uint8_t> start) = nullptr;
  // True: a file that is not regular is an error and is not opened, so the call waits for nothing but the file system.
  // False: the file may also be a pipe.
  bool regular_only = false;
};

// Reads all of `path`. Thread-safe.
Expected<std::vector<std::uint8_t>> read_file(const std::string& path, const ReadLimits& limits = {});

// Writes `bytes` to a file beside `path` and renames it to `path`, so that `path` is the old file or the complete new
// one, also after a crash of the machine. The new file has the owner, the group and the permissions of the old one, as
// far as the system lets this process set them. A symbolic link is kept, and the file to which it points is replaced. A
// file that is not regular (a pipe, /dev/stdout) is written in place. Returns the error; empty: success.
std::string replace_file(const std::string& path, std::span<const std::uint8_t> bytes);

// Removes the files that `replace_file` is writing in any thread, for a process that is about to end: calls of
// `replace_file` that are under way, and later ones, never return. May be called by a signal's handler.
void remove_unfinished_files() noexcept;

}  // namespace stalloc::plan
