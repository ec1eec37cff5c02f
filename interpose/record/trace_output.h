// SPDX-License-Identifier: Apache-2.0
// The file a process records into: made by it, appended to in whole chunks, never any other file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

namespace stalloc::record {

// Holds no descriptor between two chunks: a program may close descriptors that it does not know and reuse their
// numbers. Not thread-safe.
class TraceOutput {
 public:
  // `path`: the file, which must not be there yet; if it is, another name is chosen.
  explicit TraceOutput(std::string path) : path_(std::move(path)) {}

  // Appends all bytes, or none; the first call makes the file. Empty on success, else what went wrong, in one line: the
  // file cannot be made or written, is full, or was changed since the last call. Then the chunks before it are whole,
  // and nothing more may be appended. Raises no signal and waits for nothing but the file system.
  //
  // When something is there already under the name, a regular file or a link that leads nowhere, the process id goes
  // before the extension, and a number if that is taken too. Anything else that is there is an error.
  std::string append(std::span<const std::uint8_t> bytes);

  [[nodiscard]] const std::string& path() const { return path_; }
  // What was there under the name asked for, so that `path` is another; empty: nothing.
  [[nodiscard]] const std::string& taken() const { return taken_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // in the file

 private:
  // A descriptor of the file, or -1 and what went wrong.
  int create(std::string* error);
  int reopen(std::string* error);
  [[nodiscard]] bool is_ours(int file) const;
  void undo(int file) const;  // removes what follows the last whole chunk; a file without any is deleted
  [[nodiscard]] std::string failure(int error) const;

  std::string path_;
  std::string taken_;
  bool created_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace stalloc::record
