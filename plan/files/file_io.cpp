#include "plan/files/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace stalloc::plan {
namespace {

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

std::string system_error(const char* what, const std::string& path) {
  return std::string(what) + " " + path + ": " + std::generic_category().message(errno);
}

bool write_all(int fd, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

Outcome<std::vector<std::uint8_t>> read_file(const std::string& path) {
  using Result = Outcome<std::vector<std::uint8_t>>;
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return Result::failure(system_error("cannot open", path));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return Result::failure(system_error("cannot read", path));
  Result result;
  std::vector<std::uint8_t>& bytes = result.value;
  // The size is a hint only: the file may grow, shrink or be a pipe.
  constexpr std::size_t kStep = std::size_t{1} << 16;
  bytes.resize(S_ISREG(info.st_mode) ? static_cast<std::size_t>(info.st_size) + 1 : kStep);
  std::size_t used = 0;
  for (;;) {
    if (used == bytes.size()) bytes.resize(bytes.size() + bytes.size() / 2 + kStep);
    const ssize_t got = ::read(file.get(), bytes.data() + used, bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Result::failure(system_error("cannot read", path));
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  bytes.resize(used);
  return result;
}

std::string replace_file(const std::string& path, std::span<const std::uint8_t> bytes) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return "cannot write " + path + ": it is a directory";
  const bool in_place = exists && !S_ISREG(info.st_mode);
  const std::string target = in_place ? path : path + ".tmp" + std::to_string(::getpid());
  Descriptor file(::open(target.c_str(), O_WRONLY | O_CLOEXEC | (in_place ? 0 : O_CREAT | O_TRUNC), 0644));
  if (file.get() < 0) return system_error("cannot write", path);
  bool written = write_all(file.get(), bytes);
  const int write_errno = errno;
  if (!file.close() && written) {
    written = false;
  } else if (!written) {
    errno = write_errno;
  }
  if (written && (in_place || ::rename(target.c_str(), path.c_str()) == 0)) return {};
  std::string error = system_error("cannot write", path);
  if (!in_place) ::unlink(target.c_str());
  return error;
}

}  // namespace stalloc::plan
