// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "interpose/base/environment.h"

namespace stalloc {
namespace {

// The first one that is set is used: torchrun and similar launchers, Slurm's srun, Open MPI, MPICH and Intel MPI, PMIx.
constexpr std::array kRankVariables = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
constexpr std::size_t kMostArgumentBytes = 64 << 10;

std::array<const char*, kRankVariables.size()> kept_ranks{};  // null: not set
const char* start_folder = nullptr;                           // null: not known
char* arguments_kept = nullptr;                               // each ended by a null byte; null: not known
std::size_t argument_bytes = 0;

bool is_rank(const char* text) {
  if (text == nullptr || *text == '\0') return false;
  const std::string_view digits(text);
  return digits.size() <= 9 && digits.find_first_not_of("0123456789") == std::string_view::npos;
}

// The arguments in their current state, which the program may have changed.
std::string arguments_now() {
  const int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text(kMostArgumentBytes, '\0');
  const ssize_t bytes = ::read(file, text.data(), text.size());
  ::close(file);
  text.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
  return text;
}

}  // namespace

void remember_start() noexcept {
  for (std::size_t i = 0; i < kept_ranks.size(); ++i) kept_ranks[i] = environment::copy(kRankVariables[i]);
  // For a folder that cannot be reached from the root, the kernel returns a text that is not a path.
  const char* folder = ::getcwd(nullptr, 0);
  start_folder = folder != nullptr && *folder == '/' ? folder : nullptr;
}

void remember_arguments(int count, const char* const* arguments) noexcept {
  std::size_t bytes = 0;
  for (int i = 0; i < count && bytes < kMostArgumentBytes; ++i) bytes += std::strlen(arguments[i]) + 1;
  bytes = std::min(bytes, kMostArgumentBytes);
  auto* copy = static_cast<char*>(std::malloc(bytes + 1));
  if (copy == nullptr) return;
  std::size_t used = 0;
  for (int i = 0; i < count && used < bytes; ++i) {
    const std::size_t part = std::min(std::strlen(arguments[i]) + 1, bytes - used);
    std::memcpy(copy + used, arguments[i], part);
    used += part;
  }
  arguments_kept = copy;
  argument_bytes = used;
}

std::string launcher_rank() {
  for (std::size_t i = 0; i < kRankVariables.size(); ++i) {
    const char* now = std::getenv(kRankVariables[i]);
    if (is_rank(now)) return now;
    if (is_rank(kept_ranks[i])) return kept_ranks[i];
  }
  return {};
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return {};
  return name.data();
}

std::string command_line() {
  std::string text = arguments_kept != nullptr ? std::string(arguments_kept, argument_bytes) : arguments_now();
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text) {
    if (c == '\0') c = ' ';
  }
  return text;
}

std::string program_path() {
  std::array<char, 4096> path{};
  const ssize_t bytes = readlink("/proc/self/exe", path.data(), path.size());
  return bytes < 0 ? std::string{} : std::string(path.data(), static_cast<std::size_t>(bytes));
}

std::string insert_before_extension(std::string path, std::string_view text) {
  const std::size_t slash = path.rfind('/');
  const std::size_t first = slash == std::string::npos ? 0 : slash + 1;
  const std::size_t dot = path.rfind('.');
  path.insert(dot == std::string::npos || dot <= first ? path.size() : dot, text);
  return path;
}

std::string expand_path(std::string_view name) {
  const std::string rank = launcher_rank();
  std::string path;
  bool distinct = false;
  for (std::size_t at = 0; at < name.size(); ++at) {
    const char next = name[at] == '%' && at + 1 < name.size() ? name[at + 1] : '\0';
    if (next == 'r') path += rank.empty() ? "0" : rank;
    if (next == 'p') path += std::to_string(getpid());
    if (next == 'h') path += host_name();
    if (next == '%') path += '%';
    distinct |= next == 'r' || next == 'p';
    if (next == 'r' || next == 'p' || next == 'h' || next == '%') {
      ++at;
    } else {
      path += name[at];
    }
  }
  if (!rank.empty() && !distinct && !path.empty()) path = insert_before_extension(std::move(path), "." + rank);
  return path;
}

std::string absolute_path(std::string path) {
  if (path.empty() || path.front() == '/' || start_folder == nullptr) return path;
  std::string folder = start_folder;
  if (folder.back() != '/') folder += '/';
  return folder + path;
}

}  // namespace stalloc
