#include "interpose/base/process.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace stalloc {

std::string launcher_rank() {
  // First match wins: torchrun and its kin, Slurm's srun, Open MPI, MPICH/Intel MPI, PMIx.
  static constexpr std::array kVariables = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
  for (const char* variable : kVariables) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0') continue;
    const std::string_view digits(text);
    if (digits.size() <= 9 && digits.find_first_not_of("0123456789") == std::string_view::npos) return text;
  }
  return {};
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return {};
  return name.data();
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
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

}  // namespace stalloc
