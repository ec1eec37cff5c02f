// SPDX-License-Identifier: Apache-2.0
// The trace file of a process, which the process has created and to which it appends whole chunks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

namespace stalloc::record {

// Keeps no descriptor open between two chunks, since a program may close descriptors that it does not know and reuse
// their numbers. Not thread-safe.
class TraceOutput {
 public:
  // `path`: the name of the new file; if it exists, another name is chosen.
  explicit TraceOutput(std::string path) : path_(std::move(path)) {}

  // Appends all bytes, or none; the first call creates the file. Returns an empty text on success, else the error in
  // one line: the file cannot be created or written, the disk is full, or the file was changed since the last call. The
  // earlier chunks are then whole, and more may be appended only if `may_retry`. Raises no signal and waits only for
  // the file system.
  //
  // If the name is taken by a regular file or a dangling link, the process id is inserted before the extension, and
  // also a number if that name is taken, too. Anything else under the name is an error.
  std::string append(std::span<const std::uint8_t> bytes);

  [[nodiscard]] const std::string& path() const { return path_; }
  // The requested name, if it was taken and `path` is another one; else empty.
  [[nodiscard]] const std::string& taken() const { return taken_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // in the file
  // Whether the latest call of `append` failed for want of something of which there may be more later: descriptors,
  // memory, or room on the disk.
  [[nodiscard]] bool may_retry() const { return may_retry_; }

 private:
  // Return a descriptor of the file, or -1 and the error.
  int create(std::string* error);
  int reopen(std::string* error);
  [[nodiscard]] bool is_ours(int file) const;
  void undo(int file);  // removes bytes after the last whole chunk; deletes a file without whole chunks
  std::string failure(int error);

  std::string path_;
  std::string taken_;
  bool created_ = false;
  bool may_retry_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace stalloc::record
