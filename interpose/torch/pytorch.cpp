// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/pytorch.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace stalloc::torch {
namespace {

constexpr std::string_view kLibrary = "libc10_cuda.so";
// A function of libc10.so, mangled with the C++11 ABI of std::string.
constexpr const char* kNewStrings =
    "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

struct Search {
  loader::Module module;
  std::string path;
};

int visit(dl_phdr_info* info, std::size_t, void* data) {
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (path.substr(path.rfind('/') + 1) != kLibrary || info->dlpi_phnum == 0) return 0;
  auto& search = *static_cast<Search*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const char* begin = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    if (search.module.low == nullptr || begin < search.module.low) search.module.low = begin;
    search.module.high = std::max(search.module.high, begin + header.p_memsz);
  }
  search.module.path = info->dlpi_name;
  return 1;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Returns up to 4096 bytes of a file; none if it cannot be read.
std::string read_beginning(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  std::array<char, 4096> text{};
  const std::size_t bytes = std::fread(text.data(), 1, text.size(), file);
  std::fclose(file);
  return {text.data(), bytes};
}

// Wheels have torch/lib and torch/version.py. PyTorch's distribution for C++ programs has lib and build-version.
std::string read_version(const std::string& library) {
  const std::string root = folder_of(library) + "/../";
  constexpr std::string_view kAssignment = "__version__ = '";
  const std::string python = read_beginning(root + "version.py");
  if (const std::size_t at = python.find(kAssignment); at != std::string::npos) {
    const std::size_t begin = at + kAssignment.size();
    return python.substr(begin, python.find('\'', begin) - begin);
  }
  const std::string plain = read_beginning(root + "build-version");
  return plain.substr(0, plain.find_first_of(" \r\n"));
}

bool is_readable(const std::string& path) { return ::access(path.c_str(), R_OK) == 0; }

// The folder of the doors beside this library, even if the library was loaded by a link that lies elsewhere.
std::string library_folder() {
  loader::Module own;
  const bool known = loader::find_module(reinterpret_cast<const void*>(&library_folder), &own) && own.path != nullptr;
  if (!known) return {};
  std::array<char, PATH_MAX> whole{};
  const char* const path = ::realpath(own.path, whole.data()) != nullptr ? whole.data() : own.path;
  return folder_of(path) + "/stalloc-torch";
}

}  // namespace

bool find_pytorch(PyTorch* found) {
  Search search;
  if (dl_iterate_phdr(visit, &search) == 0) return false;
  const std::string path = search.module.path;
  found->allocator = search.module;
  found->version = read_version(path);
  found->new_strings = loader::find_in_loaded("libc10.so", kNewStrings) != nullptr;
  return true;
}

std::string door_version(const std::string& version) {
  std::size_t digits = 0;
  std::array<std::size_t, 3> ends{};
  std::size_t at = 0;
  for (std::size_t& end : ends) {
    digits = at;
    while (at < version.size() && version[at] >= '0' && version[at] <= '9') ++at;
    if (at == digits) return version;
    end = at;
    if (&end != &ends.back() && (at >= version.size() || version[at++] != '.')) return version;
  }
  const bool release = at == version.size() || version[at] == '+';
  // "+cu130" only names the CUDA version. A build with another suffix, such as "+git1234", may have other sources.
  const bool known = at == version.size() || version.compare(at, 3, "+cu") == 0;
  return release && known ? version.substr(0, ends[1]) : version;
}

std::string find_door(const PyTorch& pytorch, const std::string& folder) {
  if (pytorch.version.empty() || pytorch.version.find('/') != std::string::npos) return {};
  const char* strings = pytorch.new_strings ? "" : "-old-strings";
  for (const std::string& place : {folder, library_folder()}) {
    if (place.empty()) continue;
    for (const std::string& version : {pytorch.version, door_version(pytorch.version)}) {
      std::string path = place;
      path.append("/libstalloc_torch-").append(version).append(strings).append(".so");
      if (is_readable(path)) return path;
    }
  }
  return {};
}

}  // namespace stalloc::torch
