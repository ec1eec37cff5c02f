// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/statistics_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <utility>

#include "interpose/base/file_descriptor.h"
#include "interpose/base/process.h"

namespace stalloc {

struct StatisticsPage::Content {
  StatisticsHeader header;
  std::array<serve::PublishedFigures, kDevices> devices;
};

namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::string_view kMagic = "stalloc";

std::string error_text(const std::string& path) { return path + ": " + std::strerror(errno); }

std::uint64_t nanoseconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

template <std::size_t Bytes>
void set_text(char (&field)[Bytes], std::string_view text) {
  const std::size_t bytes = std::min(text.size(), Bytes - 1);
  std::copy_n(text.data(), bytes, field);
  field[bytes] = '\0';
}

std::string content_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Field 22 of /proc/self/stat. The program's name, field 2, may contain anything, even parentheses.
std::uint64_t process_start() {
  const std::string text = content_of("/proc/self/stat");
  std::size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  std::uint64_t ticks = 0;
  if (at != std::string::npos) std::from_chars(text.data() + at + 1, text.data() + text.size(), ticks);
  return ticks;
}

std::uint64_t process_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::int64_t rank() {
  const std::string text = launcher_rank();
  std::int64_t number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

void describe_process(StatisticsHeader* header, std::string_view mode) {
  header->version = kVersion;
  header->header_bytes = sizeof(StatisticsHeader);
  header->device_bytes = sizeof(serve::PublishedFigures);
  header->devices = StatisticsPage::kDevices;
  header->process = static_cast<std::uint64_t>(::getpid());
  header->process_start = process_start();
  header->process_namespace = process_namespace();
  std::string boot = content_of("/proc/sys/kernel/random/boot_id");
  while (!boot.empty() && boot.back() == '\n') boot.pop_back();
  set_text(header->boot, boot);
  header->rank = rank();
  header->began = nanoseconds_now();
  set_text(header->mode, mode);
  set_text(header->host, host_name());
  set_text(header->command, command_line());
}

// Returns a descriptor of the folder, which is created if it does not exist; -1 if it must not be used, and the reason.
int open_folder(const std::string& path, std::string* why) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    *why = error_text(path);
    return -1;
  }
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat status {};
  if (folder < 0 || ::fstat(folder, &status) != 0) {
    *why = error_text(path);
  } else if (status.st_uid != ::geteuid()) {
    *why = path + " belongs to another user";
  } else if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    *why = path + " can be written to by others (chmod 700 it)";
  } else {
    return folder;
  }
  if (folder >= 0) ::close(folder);
  return -1;
}

// False if a limit on the size of files would end the process by a signal (SIGXFSZ).
bool may_write(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes);
}

// All bytes of the file are allocated before it is mapped, so that a write to the mapping cannot fail for want of
// space.
void* map_new_file(int folder, const std::string& name, std::size_t bytes) {
  const FileDescriptor file(::openat(folder, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.number() < 0) return nullptr;
  if (const int error = ::posix_fallocate(file.number(), 0, static_cast<off_t>(bytes)); error == 0) {
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (mapped != MAP_FAILED) return mapped;
  } else {
    errno = error;
  }
  const int error = errno;
  ::unlinkat(folder, name.c_str(), 0);
  errno = error;
  return nullptr;
}

}  // namespace

StatisticsPage::StatisticsPage(Content* content, std::string folder, std::string path)
    : content_(content), folder_(std::move(folder)), path_(std::move(path)) {}

std::unique_ptr<StatisticsPage> StatisticsPage::create(std::string_view folder, std::string_view mode,
                                                       std::string* why) {
  static_assert(offsetof(Content, devices) == sizeof(StatisticsHeader));
  const std::string named(folder);
  const FileDescriptor opened(open_folder(named, why));
  if (opened.number() < 0) return nullptr;
  if (!may_write(sizeof(Content))) {
    *why = "the limit on the size of files is too low";
    return nullptr;
  }
  // An absolute path, since the program may change its working folder.
  std::array<char, PATH_MAX> whole{};
  if (::realpath(named.c_str(), whole.data()) == nullptr) {
    *why = error_text(named);
    return nullptr;
  }
  // A process that executes another program keeps its id, so the time makes the name unique.
  const std::string name = std::to_string(::getpid()) + "." + std::to_string(nanoseconds_now()) + ".statistics";
  void* mapped = map_new_file(opened.number(), name, sizeof(Content));
  if (mapped == nullptr) {
    *why = error_text(named + "/" + name);
    return nullptr;
  }
  auto* content = new (mapped) Content{};
  describe_process(&content->header, mode);
  // Written last: a reader that sees the first letter sees everything else, too.
  char* const magic = content->header.magic;
  std::copy(kMagic.begin() + 1, kMagic.end(), magic + 1);
  std::atomic_ref<char>(magic[0]).store(kMagic[0], std::memory_order_release);
  return std::unique_ptr<StatisticsPage>(
      new StatisticsPage(content, whole.data(), std::string(whole.data()) + "/" + name));
}

serve::PublishedFigures* StatisticsPage::device(int device) noexcept {
  return &content_->devices[static_cast<std::size_t>(device)];
}

void StatisticsPage::finish() noexcept {
  content_->header.ended = nanoseconds_now();
  try {
    if (::access((folder_ + "/" + kKeep).c_str(), F_OK) != 0) ::unlink(path_.c_str());
  } catch (const std::bad_alloc&) {
    // The page stays; `stalloc top` removes the pages of processes that have ended.
  }
}

}  // namespace stalloc
