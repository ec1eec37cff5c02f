// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/road.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>

#include "interpose/base/loader.h"
#include "interpose/base/log.h"
#include "interpose/session/session.h"
#include "interpose/torch/door_library.h"
#include "interpose/torch/pytorch.h"

namespace stalloc::torch {
namespace {

// PyTorch read the second up to 2.8, and reads both since.
constexpr const char* kNames[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
constexpr const char* kBackend = "backend:cudaMallocAsync";

std::atomic<bool> open{false};
std::atomic<bool> looked{false};
std::atomic<const char*> native_low{nullptr};
std::atomic<const char*> native_high{nullptr};

bool is_configuration(const char* name) noexcept {
  if (name == nullptr || std::strncmp(name, "PYTORCH_", 8) != 0) return false;
  return std::strcmp(name, kNames[0]) == 0 || std::strcmp(name, kNames[1]) == 0;
}

bool is_of_pytorch(const void* caller) noexcept {
  loader::Module module;
  if (!loader::find_module(caller, &module) || module.path == nullptr) return false;
  const char* slash = std::strrchr(module.path, '/');
  return std::strncmp(slash == nullptr ? module.path : slash + 1, "libc10", 6) == 0;
}

// The user's configuration of PyTorch's allocator; null: none. A user who sets one of the names means both.
const char* users_configuration() noexcept {
  const char* value = std::getenv(kNames[0]);
  return value != nullptr ? value : std::getenv(kNames[1]);
}

// True when the PyTorch that is being loaded should use its backend cudaMallocAsync.
bool needs_backend() {
  Session& session = Session::get();
  const Options& options = session.options();
  if (!session.active() || options.torch != TorchRoad::Door || !options.frameworks) return false;
  PyTorch pytorch;
  return find_pytorch(&pytorch) && find_door(pytorch, std::string(options.torch_doors)).empty();
}

// Why PyTorch's tensors do not come through a door.
std::string without_door(const PyTorch& pytorch, const std::string& why) {
  return "PyTorch " + (pytorch.version.empty() ? "of unknown version" : pytorch.version) + ": " + why;
}

// How its tensors reach stalloc instead.
const char* other_road(bool by_backend) {
  if (by_backend) return "its tensors come by its backend cudaMallocAsync";
  return users_configuration() == nullptr
             ? "its tensors are not served (STALLOC_TORCH=async serves them by its backend cudaMallocAsync)"
             : "its tensors are not served (with backend:cudaMallocAsync in PYTORCH_CUDA_ALLOC_CONF they are)";
}

std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "it cannot be loaded" : text;
}

// What went wrong; empty when the door is open.
std::string open_door(const std::string& path) {
  void* door = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (door == nullptr) return loader_error();
  const auto function = reinterpret_cast<stalloc_door_open_function>(loader::real_dlsym(door, "stalloc_door_open"));
  if (function == nullptr) return path + " is no door";
  const char* why = function(&door_library());
  return why == nullptr ? std::string() : why;
}

// Pre: PyTorch is loaded.
void try_door(const PyTorch& pytorch) {
  const Options& options = Session::get().options();
  const std::string path = find_door(pytorch, std::string(options.torch_doors));
  if (path.empty()) {
    const char* configured = users_configuration();
    const bool by_backend = configured == nullptr ? options.frameworks : std::strstr(configured, kBackend) != nullptr;
    return log::warn("{}; {}", without_door(pytorch, "there is no door for it (tools/build-torch-door builds one)"),
                     other_road(by_backend));
  }
  native_low.store(pytorch.allocator.low);
  native_high.store(pytorch.allocator.high);
  const std::string why = open_door(path);
  if (why.empty()) {
    Session::get().serve_pytorch();
    open.store(true, std::memory_order_release);
    log::info("PyTorch {}: its tensors come through {}", pytorch.version, path);
    return;
  }
  if (why == kBackend) {  // the user's own choice: nothing is lost
    log::info("{}", without_door(pytorch, "its backend is cudaMallocAsync, as it was configured"));
  } else {
    const bool uncached = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
    log::warn("{}; {}", without_door(pytorch, why),
              uncached ? "each tensor is a cudaMalloc of its own" : other_road(false));
  }
}

}  // namespace

const char* configuration(const char* name, const void* caller, char* value) noexcept {
  if (!is_configuration(name) || !is_of_pytorch(caller)) return value;
  try {
    (void)Session::get();  // made only now where PyTorch comes with the program: it may have set the variable
    const char* set = std::getenv(name);
    return users_configuration() == nullptr && needs_backend() ? kBackend : set;
  } catch (const std::exception&) {
    return value;
  }
}

void look() noexcept {
  if (looked.load(std::memory_order_acquire)) return;
  Session& session = Session::get();
  if (!session.active() || session.options().torch != TorchRoad::Door) return;
  static std::mutex mutex;
  const std::unique_lock lock(mutex, std::try_to_lock);  // the door's own first calls reach this function, too
  if (!lock.owns_lock() || looked.load()) return;
  try {
    PyTorch pytorch;
    if (!find_pytorch(&pytorch)) return;
    looked.store(true, std::memory_order_release);
    try_door(pytorch);
  } catch (const std::exception& error) {
    log::warn("PyTorch's door: {}", error.what());
  }
}

bool is_native_allocator(const void* caller) noexcept {
  return is_open() && caller >= native_low.load(std::memory_order_relaxed) &&
         caller < native_high.load(std::memory_order_relaxed);
}

bool is_open() noexcept { return open.load(std::memory_order_acquire); }

}  // namespace stalloc::torch
