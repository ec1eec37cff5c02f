// SPDX-License-Identifier: Apache-2.0
#include "plan/files/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>

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

// Makes the file durable. True also when the file system cannot do that.
bool is_on_disk(int fd) { return ::fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP; }

constexpr std::size_t kStep = std::size_t{1} << 16;

// Appends what can be read, up to `most` bytes in all or the end of the file, which is thought to have `size`. False:
// an error, in errno.
bool read_up_to(int fd, std::size_t most, std::size_t size, std::vector<std::uint8_t>& bytes) {
  std::size_t used = bytes.size();
  while (used < most) {
    if (used == bytes.size()) bytes.resize(std::min(most, used > size ? used + used / 2 + kStep : size + 1));
    const ssize_t got = ::read(fd, bytes.data() + used, bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  bytes.resize(used);
  return true;
}

// The path that a symbolic link names at last, which need not exist, so that no link is replaced.
std::string link_target(std::string path) {
  constexpr int kMostLinks = 40;  // as the kernel follows
  std::array<char, PATH_MAX> target{};
  for (int i = 0; i < kMostLinks; ++i) {
    const ssize_t bytes = ::readlink(path.c_str(), target.data(), target.size());
    if (bytes <= 0) break;
    const std::string_view name(target.data(), static_cast<std::size_t>(bytes));
    path.resize(name.front() == '/' ? 0 : path.rfind('/') + 1);
    path += name;
  }
  return path;
}

// Where remove_unfinished_files finds the names of the files that are being written, one for each thread that writes.
constexpr std::size_t kMostUnfinished = 1024;
constinit std::array<std::atomic<const char*>, kMostUnfinished> unfinished{};
constinit std::atomic<bool> ending{false};
static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

// A new file, which remove_unfinished_files removes until this object is destroyed.
class UnfinishedFile {
 public:
  UnfinishedFile() = default;
  ~UnfinishedFile() { forget(); }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  // Returns a descriptor; -1 if the file cannot be made, or is there already.
  int create(std::string name) {
    forget();
    name_ = std::move(name);
    note();
    const int fd = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    const int error = errno;
    if (fd < 0) forget();
    errno = error;
    return fd;
  }
  [[nodiscard]] const char* name() const { return name_.c_str(); }

 private:
  // Without a free place the file is made all the same.
  void note() {
    for (auto& place : unfinished) {
      const char* none = nullptr;
      if (!place.compare_exchange_strong(none, name_.c_str())) continue;
      place_ = &place;
      break;
    }
    if (ending.load()) wait_for_the_end();
  }
  // Where the name is gone, remove_unfinished_files uses it.
  void forget() {
    if (place_ != nullptr && place_->exchange(nullptr) == nullptr) wait_for_the_end();
    place_ = nullptr;
  }
  [[noreturn]] static void wait_for_the_end() {
    while (true) ::pause();
  }

  std::string name_;
  std::atomic<const char*>* place_ = nullptr;
};

// Makes a new file beside `path`, whose name nobody uses. Where the name of `path` is as long as names may be, only its
// beginning is in that of the new file.
int create_beside(const std::string& path, UnfinishedFile& beside) {
  constexpr int kNames = 100;
  constexpr std::size_t kMostKept = NAME_MAX - 32;
  const std::string kept = path.substr(0, path.rfind('/') + 1 + kMostKept) + ".tmp" + std::to_string(::getpid());
  for (int i = 0; i < kNames; ++i) {
    const int fd = beside.create(kept + (i == 0 ? "" : "-" + std::to_string(i)));
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

// Gives a new file the owner, the group and the permissions of the file that it replaces. Where the group cannot be
// set, this process's own group gets no more rights than everybody has. Some file systems have no permissions to set.
void take_after(int fd, const struct stat& old) {
  const bool same_group =
      ::fchown(fd, old.st_uid, old.st_gid) == 0 || ::fchown(fd, static_cast<uid_t>(-1), old.st_gid) == 0;
  constexpr mode_t kAll = S_IRWXU | S_IRWXG | S_IRWXO;
  const mode_t for_group = same_group ? old.st_mode : (old.st_mode & S_IRWXO) << 3;
  (void)::fchmod(fd, (old.st_mode & kAll & ~static_cast<mode_t>(S_IRWXG)) | (for_group & S_IRWXG));
}

std::string write_in_place(const std::string& path, std::span<const std::uint8_t> bytes) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const bool written = file.get() >= 0 && write_all(file.get(), bytes);
  return written && file.close() ? std::string() : system_error("cannot write", path);
}

}  // namespace

Expected<std::vector<std::uint8_t>> read_file(const std::string& path, const ReadLimits& limits) {
  using Result = Expected<std::vector<std::uint8_t>>;
  const auto irregular = [&path] { return Result::failure("cannot read " + path + ": it is no regular file"); };
  struct stat info {};
  // Checked before opening, since opening some devices has effects, and checked again on the open file.
  if (limits.regular_only) {
    if (::stat(path.c_str(), &info) != 0) return Result::failure(system_error("cannot open", path));
    if (!S_ISREG(info.st_mode)) return irregular();
  }
  const int flags = O_RDONLY | O_CLOEXEC | (limits.regular_only ? O_NONBLOCK | O_NOCTTY : 0);
  const Descriptor file(::open(path.c_str(), flags));
  if (file.get() < 0) return Result::failure(system_error("cannot open", path));
  if (::fstat(file.get(), &info) != 0) return Result::failure(system_error("cannot read", path));
  if (limits.regular_only && !S_ISREG(info.st_mode)) return irregular();
  const std::string too_large = "cannot read " + path + ": it is too large for such a file";
  // The size is a hint only: the file may grow, shrink or be a pipe.
  const std::size_t size = S_ISREG(info.st_mode) ? static_cast<std::size_t>(info.st_size) : kStep;
  if (size > limits.most_bytes) return Result::failure(too_large);
  Result result;
  if (!read_up_to(file.get(), kStep, size, result.value)) return Result::failure(system_error("cannot read", path));
  if (limits.find_defect != nullptr) {
    if (const std::string defect = limits.find_defect(result.value); !defect.empty()) {
      return Result::failure(path + ": " + defect);
    }
  }
  if (!read_up_to(file.get(), limits.most_bytes + 1, size, result.value)) {
    return Result::failure(system_error("cannot read", path));
  }
  if (result.value.size() > limits.most_bytes) return Result::failure(too_large);  // it has grown, or is a pipe
  return result;
}

std::string replace_file(const std::string& path, std::span<const std::uint8_t> bytes) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return system_error("cannot write", path);
  if (exists && S_ISDIR(info.st_mode)) return "cannot write " + path + ": it is a directory";
  if (exists && !S_ISREG(info.st_mode)) return write_in_place(path, bytes);
  const std::string target = link_target(path);
  UnfinishedFile beside;
  Descriptor file(create_beside(target, beside));
  if (file.get() < 0) return system_error("cannot write", path);
  if (exists) take_after(file.get(), info);
  const bool written = write_all(file.get(), bytes) && is_on_disk(file.get()) && file.close() &&
                       ::rename(beside.name(), target.c_str()) == 0;
  if (written) return {};
  std::string error = system_error("cannot write", path);
  ::unlink(beside.name());
  return error;
}

void remove_unfinished_files() noexcept {
  ending.store(true);
  for (auto& place : unfinished) {
    if (const char* name = place.exchange(nullptr)) ::unlink(name);
  }
}

}  // namespace stalloc::plan
