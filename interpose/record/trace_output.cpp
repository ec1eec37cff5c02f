// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/trace_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>

#include "interpose/base/process.h"
#include "interpose/base/quiet_writes.h"

namespace stalloc::record {
namespace {

constexpr int kNames = 1000;
constexpr int kMayPass[] = {EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT};

int open_uninterrupted(const std::string& path, int flags) {
  int file = -1;
  do {
    file = ::open(path.c_str(), flags | O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0644);
  } while (file < 0 && errno == EINTR);
  return file;
}

// The `n`th name to try if the requested one is taken.
std::string other_name(const std::string& path, int n) {
  const std::string process = "." + std::to_string(::getpid());
  return insert_before_extension(path, n == 1 ? process : process + "." + std::to_string(n));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// On failure returns false and sets errno; some of the bytes may have been written.
bool write_all(int file, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

std::string TraceOutput::failure(int error) {
  may_retry_ = std::find(std::begin(kMayPass), std::end(kMayPass), error) != std::end(kMayPass);
  return path_ + ": " + std::generic_category().message(error);
}

bool TraceOutput::is_ours(int file) const {
  struct stat now {};
  return ::fstat(file, &now) == 0 && S_ISREG(now.st_mode) && now.st_dev == device_ && now.st_ino == inode_;
}

int TraceOutput::create(std::string* error) {
  const std::string wanted = path_;
  int file = open_uninterrupted(path_, O_CREAT | O_EXCL);
  for (int n = 1; file < 0 && errno == EEXIST && n <= kNames; ++n) {
    struct stat there {};
    if (n == 1 && ::stat(wanted.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
      *error = wanted + " is " + kind_of(there.st_mode) + ", and a trace is written to a regular file only";
      return -1;
    }
    taken_ = wanted;
    path_ = other_name(wanted, n);
    file = open_uninterrupted(path_, O_CREAT | O_EXCL);
  }
  struct stat made {};
  if (file < 0 || ::fstat(file, &made) != 0) {
    *error = failure(errno);
    if (file >= 0) ::close(file);
    return -1;
  }
  created_ = true;
  device_ = made.st_dev;
  inode_ = made.st_ino;
  return file;
}

int TraceOutput::reopen(std::string* error) {
  const int file = open_uninterrupted(path_, O_APPEND);
  if (file < 0) {
    *error = failure(errno);
    return -1;
  }
  struct stat now {};
  if (is_ours(file) && ::fstat(file, &now) == 0 && static_cast<std::uint64_t>(now.st_size) == bytes_) return file;
  *error = path_ + " was changed or replaced by somebody else";
  ::close(file);
  return -1;
}

void TraceOutput::undo(int file) {
  // An incomplete chunk would make the file hard to read.
  const bool cut = ::ftruncate(file, static_cast<off_t>(bytes_)) == 0;
  struct stat there {};
  const bool nothing = cut && bytes_ == 0 && ::lstat(path_.c_str(), &there) == 0;
  if (!nothing || there.st_dev != device_ || there.st_ino != inode_) return;
  created_ = ::unlink(path_.c_str()) != 0;
}

std::string TraceOutput::append(std::span<const std::uint8_t> bytes) {
  const QuietWrites quiet;
  may_retry_ = false;
  std::string error;
  const int file = created_ ? reopen(&error) : create(&error);
  if (file < 0) return error;
  if (!write_all(file, bytes)) {
    error = failure(errno);
    if (is_ours(file)) undo(file);
  }
  // Another thread may have closed the descriptor, and its number may belong to another file by now.
  if (is_ours(file) && ::close(file) != 0 && error.empty()) {
    error = failure(errno);
    may_retry_ = false;  // some of the bytes may be in the file
  }
  if (error.empty()) bytes_ += bytes.size();
  return error;
}

}  // namespace stalloc::record
