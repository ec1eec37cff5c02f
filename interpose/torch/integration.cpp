// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/integration.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>

#include "interpose/base/kept_errno.h"
#include "interpose/base/loader.h"
#include "interpose/base/log.h"
#include "interpose/base/quiet_writes.h"
#include "interpose/session/session.h"
#include "interpose/torch/door_library.h"
#include "interpose/torch/pytorch.h"

namespace stalloc::torch {
namespace {

// PyTorch reads only the second up to 2.8, and both since.
constexpr const char* kConfigurationNames[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
constexpr const char* kBackend = "backend:cudaMallocAsync";

std::atomic<bool> open{false};
std::atomic<bool> attempted{false};  // PyTorch was found, and the door was opened or cannot be
// The address range of libc10_cuda.so.
std::atomic<const char*> native_low{nullptr};
std::atomic<const char*> native_high{nullptr};

bool is_configuration(const char* name) noexcept {
  if (name == nullptr || std::strncmp(name, "PYTORCH_", 8) != 0) return false;
  return std::strcmp(name, kConfigurationNames[0]) == 0 || std::strcmp(name, kConfigurationNames[1]) == 0;
}

bool is_in_library(const void* caller, std::string_view prefix) noexcept {
  loader::Module module;
  if (!loader::find_module(caller, &module) || module.path == nullptr) return false;
  const std::string_view path = module.path;
  return path.substr(path.rfind('/') + 1).starts_with(prefix);
}

bool is_in_pytorch(const void* caller) noexcept { return is_in_library(caller, "libc10"); }

// With this variable, PyTorch registers the segments of each snapshot with NCCL, and ends a registration when its
// allocator tells it that the segment is unmapped. The heap's segments change without the door, so NCCL would go on
// using memory that is gone.
bool registers_segments(const char* name, const void* caller) noexcept {
  return name != nullptr && std::strcmp(name, "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK") == 0 &&
         (is_in_pytorch(caller) || is_in_library(caller, "libtorch"));
}

const char* refuse_to_register(const char* name) {
  static std::once_flag once;
  std::call_once(once,
                 [name] { log::warn("{} is taken to be 0: it does not go with stalloc's adapter (door)", name); });
  return "0";
}

// The user's configuration of PyTorch's allocator; null: none. A user who sets one of the two names means both.
const char* user_configuration() noexcept {
  const char* value = std::getenv(kConfigurationNames[0]);
  return value != nullptr ? value : std::getenv(kConfigurationNames[1]);
}

// True if the PyTorch that is being loaded should use its backend cudaMallocAsync, because there is no door for it.
bool should_use_async_backend() {
  Session& session = Session::get();
  const Options& options = session.options();
  if (!session.active() || options.torch != TorchIntegration::Door || !options.frameworks) return false;
  PyTorch pytorch;
  return find_pytorch(&pytorch) && find_door(pytorch, std::string(options.torch_doors)).empty();
}

// The part of a log line that says why there is no door.
std::string why_no_door(const PyTorch& pytorch, const std::string& why) {
  return "PyTorch " + (pytorch.version.empty() ? "of unknown version" : pytorch.version) + ": " + why;
}

// The part of a log line that says how PyTorch's tensors reach stalloc without a door.
const char* alternative_to_door(bool by_backend) {
  if (by_backend) return "its tensors come by its backend cudaMallocAsync";
  return user_configuration() == nullptr
             ? "its tensors are not served (STALLOC_TORCH=async serves them by its backend cudaMallocAsync)"
             : "its tensors are not served (with backend:cudaMallocAsync in PYTORCH_CUDA_ALLOC_CONF they are)";
}

std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "it cannot be loaded" : text;
}

// Returns what went wrong; an empty text if the door is open.
std::string open_door(const std::string& path) {
  void* door = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (door == nullptr) return loader_error();
  const auto function = reinterpret_cast<stalloc_door_open_function>(loader::real_dlsym(door, "stalloc_door_open"));
  if (function == nullptr) return path + " is no adapter (door)";
  const char* why = function(&door_library());
  return why == nullptr ? std::string() : why;
}

// Pre: PyTorch is loaded.
void find_and_open_door(const PyTorch& pytorch) {
  const Options& options = Session::get().options();
  const std::string path = find_door(pytorch, std::string(options.torch_doors));
  if (path.empty()) {
    const char* configured = user_configuration();
    const bool by_backend = configured == nullptr ? options.frameworks : std::strstr(configured, kBackend) != nullptr;
    return log::warn("{}; {}",
                     why_no_door(pytorch, "there is no adapter (door) for it (tools/build-torch-door builds one)"),
                     alternative_to_door(by_backend));
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
  if (why == kBackend) {  // the user chose the backend, through which tensors reach stalloc, too
    log::info("{}", why_no_door(pytorch, "its backend is cudaMallocAsync, as it was configured"));
  } else {
    const bool uncached = why.starts_with("PYTORCH_NO_CUDA_MEMORY_CACHING");
    log::warn("{}; {}", why_no_door(pytorch, why),
              uncached ? "each tensor is a cudaMalloc of its own" : alternative_to_door(false));
  }
}

}  // namespace

const char* configuration_for(const char* name, const void* caller, char* value) noexcept {
  try {
    if (value != nullptr && is_door_open() && registers_segments(name, caller)) return refuse_to_register(name);
    if (!is_configuration(name) || !is_in_pytorch(caller)) return value;
    const KeptErrno kept;
    const NoCancellation guard;
    // Where the program is linked with PyTorch, this call creates the session, which may set the variable.
    (void)Session::get();
    const char* set = std::getenv(name);
    return user_configuration() == nullptr && should_use_async_backend() ? kBackend : set;
  } catch (const std::exception&) {
    return value;
  }
}

void open_door_once() noexcept {
  if (attempted.load(std::memory_order_acquire)) return;
  const KeptErrno kept;
  const NoCancellation guard;
  Session& session = Session::get();
  if (!session.active() || session.options().torch != TorchIntegration::Door) return;
  static std::mutex mutex;
  const std::unique_lock lock(mutex, std::try_to_lock);  // the door's first calls of CUDA call this function again
  if (!lock.owns_lock() || attempted.load()) return;
  try {
    PyTorch pytorch;
    if (!find_pytorch(&pytorch)) return;
    attempted.store(true, std::memory_order_release);
    find_and_open_door(pytorch);
  } catch (const std::exception& error) {
    log::warn("PyTorch's adapter (door): {}", error.what());
  }
}

bool is_native_allocator(const void* caller) noexcept {
  return is_door_open() && caller >= native_low.load(std::memory_order_relaxed) &&
         caller < native_high.load(std::memory_order_relaxed);
}

bool is_door_open() noexcept { return open.load(std::memory_order_acquire); }

}  // namespace stalloc::torch
