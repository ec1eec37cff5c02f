// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/frameworks.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "interpose/base/loader.h"
#include "interpose/base/log.h"

namespace stalloc {
namespace {

struct FrameworkVariable {
  const char* name;
  const char* value;
  std::string_view required;  // what a user's own value must contain to serve as well
  const char* framework;
};

// PyTorch read PYTORCH_CUDA_ALLOC_CONF up to 2.8 and reads PYTORCH_ALLOC_CONF since; each release accepts one of them.
constexpr FrameworkVariable kFrameworkVariables[] = {
    {"PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync", "backend:cudaMallocAsync", "PyTorch"},
    {"PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "backend:cudaMallocAsync", "PyTorch"},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async", "cuda_async", "JAX"},
    {"XLA_PYTHON_CLIENT_PREALLOCATE", "false", "false", "JAX"},
    {"TF_GPU_ALLOCATOR", "cuda_malloc_async", "cuda_malloc_async", "TensorFlow"},
};

// Prefixes of the file names of libraries that are loaded only into programs with CUDA or a framework.
constexpr std::string_view kLibraries[] = {"libpython", "libcuda.so",    "libcudart", "libtorch",
                                           "libc10",    "libtensorflow", "libxla"};

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Recognizes Python by the name of the program's file, or by the name by which it was started.
bool is_python() noexcept {
  std::array<char, 4096> path{};
  const ssize_t bytes = ::readlink("/proc/self/exe", path.data(), path.size());
  const std::string_view program(path.data(), bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
  return file_name(program).starts_with("python") ||
         std::string_view(program_invocation_short_name).starts_with("python");
}

bool may_run_a_framework() noexcept { return is_python() || loader::any_loaded(kLibraries); }

bool is_pytorchs(const FrameworkVariable& variable) { return std::string_view(variable.framework) == "PyTorch"; }

bool serves(const char* value, const FrameworkVariable& variable) {
  return value != nullptr && std::string_view(value).find(variable.required) != std::string_view::npos;
}

}  // namespace

void set_framework_variables(bool pytorch) noexcept {
  if (!may_run_a_framework()) return;
  // A user who has set one of PyTorch's two variables means both.
  const bool user_pytorch =
      std::getenv("PYTORCH_ALLOC_CONF") != nullptr || std::getenv("PYTORCH_CUDA_ALLOC_CONF") != nullptr;
  for (const FrameworkVariable& variable : kFrameworkVariables) {
    if (is_pytorchs(variable) && (user_pytorch || !pytorch)) continue;
    setenv(variable.name, variable.value, /*overwrite=*/0);
  }
}

void warn_of_conflicting_variables(bool pytorch) noexcept {
  for (const FrameworkVariable& variable : kFrameworkVariables) {
    if (is_pytorchs(variable) && !pytorch) continue;
    const char* value = std::getenv(variable.name);
    if (value == nullptr || serves(value, variable)) continue;
    log::warn("{}={} hides {}'s tensors from stalloc (it sees whole segments); unset it, or include {}", variable.name,
              value, variable.framework, variable.value);
  }
}

}  // namespace stalloc
