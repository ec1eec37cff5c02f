// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/rdma.h"

#include <dirent.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string_view>

namespace stalloc {
namespace {

enum class Found { No, Yes, Unknown };

// Whether a folder has an entry for which `wanted` is true. Unknown: the folder cannot be read.
template <class Wanted>
Found find_entry(const char* root, const char* folder, Wanted wanted) noexcept {
  std::array<char, 512> path{};
  const int length = std::snprintf(path.data(), path.size(), "%s%s", root, folder);
  if (length < 0 || static_cast<std::size_t>(length) >= path.size()) return Found::Unknown;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(path.data()), &closedir);
  if (open == nullptr) return Found::Unknown;
  while (const dirent* entry = readdir(open.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != ".." && wanted(name)) return Found::Yes;
  }
  return Found::No;
}

// NVIDIA's modules for compute, displays and consoles use its main module, but give no other device access to GPU
// memory.
bool is_nvidias_own(std::string_view module) {
  return module == "nvidia_uvm" || module == "nvidia_modeset" || module == "nvidia_drm";
}

}  // namespace

bool may_have_rdma(const char* root) noexcept {
  const Found verbs = find_entry(root, "/dev/infiniband", [](std::string_view it) { return it.starts_with("uverbs"); });
  if (verbs == Found::Yes) return true;
  const Found files =
      find_entry(root, "/dev", [](std::string_view it) { return it == "gdrdrv" || it.starts_with("nvidia-fs"); });
  const Found modules = find_entry(root, "/sys/module/nvidia/holders", [](auto it) { return !is_nvidias_own(it); });
  return files != Found::No || modules != Found::No;
}

}  // namespace stalloc
