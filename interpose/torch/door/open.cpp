// SPDX-License-Identifier: Apache-2.0
// The door's only exported function, which puts the door in front of PyTorch's native allocator.
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "interpose/torch/door/allocator.h"

namespace {

using stalloc::torch::door::DoorAllocator;
namespace native = c10::cuda::CUDACachingAllocator;

// As PyTorch reads the variable: older versions ask only whether it is set.
bool is_caching_switched_off() {
  const char* value = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  return value != nullptr && (STALLOC_TORCH_MINOR < 11 || std::string_view(value) == "1");
}

// Returns why the door cannot be opened; null if it can.
const char* why_not(const stalloc_door_library* library) {
  static std::string text;
  if (library->interface != STALLOC_DOOR_INTERFACE) return "the door is of another version of stalloc than the library";
  native::CUDAAllocator* current = native::allocator.load();
  if (current == nullptr) return "it has no allocator yet";
  if (const std::string name = current->name(); name != "native") {
    if (name == "cudaMallocAsync") return "backend:cudaMallocAsync";  // integration.cpp compares with this text
    text = "its allocator is another one already (" + name + ")";
    return text.c_str();
  }
  const c10::Allocator* registered = c10::GetAllocator(c10::DeviceType::CUDA);  // null in older versions
  if (registered != nullptr && registered != current) return "somebody has put another allocator in place";
  if (is_caching_switched_off()) return "PYTORCH_NO_CUDA_MEMORY_CACHING is set";
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* stalloc_door_open(const stalloc_door_library* library) {
  try {
    if (const char* why = why_not(library)) return why;
    native::CUDAAllocator* current = native::allocator.load();
    auto* door = new DoorAllocator(*current, *library);  // tensors may be freed until the process is gone
    door->open();
    if (c10::GetAllocator(c10::DeviceType::CUDA) != nullptr) c10::SetAllocator(c10::DeviceType::CUDA, door);
    native::allocator.store(door);
    return nullptr;
  } catch (const std::exception&) {
    return "the door failed to open";
  }
}
