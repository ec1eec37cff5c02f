#include "interpose/record/trace_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "interpose/base/process.h"

namespace stalloc::record {

TraceOutput::~TraceOutput() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string TraceOutput::open() {
  // Truncated only behind the lock: the file may be another process's.
  const auto open_locked = [this] {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) return false;
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return true;
    const int reason = errno;
    ::close(descriptor_);
    descriptor_ = -1;
    errno = reason;
    return false;
  };
  if (!open_locked() && errno == EWOULDBLOCK) {
    path_ = insert_before_extension(path_, "." + std::to_string(::getpid()));
    open_locked();
  }
  const bool emptied = descriptor_ >= 0 && (::ftruncate(descriptor_, 0) == 0 || errno == EINVAL);  // EINVAL: no file
  if (!emptied) return path_ + ": " + std::strerror(errno);
  return {};
}

std::string TraceOutput::append(std::span<const std::uint8_t> bytes) {
  if (descriptor_ < 0) {
    if (std::string error = open(); !error.empty()) return error;
  }
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return path_ + ": " + std::strerror(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace stalloc::record
