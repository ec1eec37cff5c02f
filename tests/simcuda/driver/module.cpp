// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/module.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tests/simcuda/driver/copy.h"
#include "tests/simcuda/driver/device.h"

namespace simcuda {
namespace {

struct Module {
  Context* context = nullptr;
  std::uint64_t context_id = 0;
  Extent* memory = nullptr;
};

struct Function {
  CUmodule module = nullptr;
  std::string name;
};

// Guarded by memory_mutex().
std::map<CUmodule, Module>& modules() {
  static auto* const all = new std::map<CUmodule, Module>;
  return *all;
}

std::map<CUfunction, Function>& functions() {
  static auto* const all = new std::map<CUfunction, Function>;
  return *all;
}

template <class Handle>
Handle next_module_handle() {
  static std::uintptr_t next = 1;
  return reinterpret_cast<Handle>(16 * next++);
}

void unload(std::map<CUmodule, Module>::iterator module) {
  std::erase_if(functions(), [&](const auto& function) { return function.second.module == module->first; });
  module->second.memory->references = 0;
  drop_if_unused(module->second.memory);
  modules().erase(module);
}

void fill(Context& context, CUdeviceptr to, unsigned value, std::uint64_t words) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(words, sizeof value, &bytes)) return fault(context);
  if (bytes > 0 && reach(context, {to, true}, bytes)) std::fill_n(static_cast<unsigned*>(pointer(to)), words, value);
}

void copy(Context& context, CUdeviceptr to, CUdeviceptr from, std::uint64_t bytes) {
  if (bytes == 0 || !reach(context, {to, true}, bytes) || !reach(context, {from, true}, bytes)) return;
  std::memmove(pointer(to), pointer(from), bytes);
}

template <class Value>
Value parameter(void** parameters, std::size_t index) {
  Value value{};
  std::memcpy(&value, parameters[index], sizeof value);
  return value;
}

// The work that a function does. Its parameters are read at the launch, as CUDA does.
std::function<void()> work_of(const std::string& name, Context& context, void** parameters) {
  if (name == "simcuda_fault") return [&context] { fault(context); };
  if (name == "simcuda_fill") {
    return [&context, to = parameter<CUdeviceptr>(parameters, 0), value = parameter<unsigned>(parameters, 1),
            words = parameter<unsigned long long>(parameters, 2)] { fill(context, to, value, words); };
  }
  if (name == "simcuda_copy") {
    return [&context, to = parameter<CUdeviceptr>(parameters, 0), from = parameter<CUdeviceptr>(parameters, 1),
            bytes = parameter<unsigned long long>(parameters, 2)] { copy(context, to, from, bytes); };
  }
  return [] {};
}

bool has_parameters(const std::string& name) { return name == "simcuda_fill" || name == "simcuda_copy"; }

}  // namespace

void drop_modules(std::uint64_t context_id) {
  const std::scoped_lock lock(memory_mutex());
  for (auto module = modules().begin(); module != modules().end();) {
    const auto next = std::next(module);
    if (module->second.context_id == context_id) unload(module);
    module = next;
  }
}

CUresult module_load(CUmodule* handle, const void* image) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::scoped_lock lock(memory_mutex());
  if (const CUresult result = check_active(*context)) return result;
  Extent* memory = nullptr;
  if (const CUresult result = create_extent(*find_device(context->device), kModuleBytes, &memory)) return result;
  memory->references = 1;
  *handle = next_module_handle<CUmodule>();
  Context& owner = root_of(*context);
  modules()[*handle] = {&owner, owner.id, memory};
  return CUDA_SUCCESS;
}

CUresult module_load_ex(CUmodule* handle, const void* image, unsigned, CUjit_option*, void**) {
  return module_load(handle, image);
}

CUresult module_load_fat(CUmodule* handle, const void* image) { return module_load(handle, image); }

CUresult module_unload(CUmodule handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  {
    const std::scoped_lock lock(memory_mutex());
    if (!modules().contains(handle)) return CUDA_ERROR_INVALID_HANDLE;
  }
  synchronize(root_of(*context));
  if (const CUresult result = error_of(*context)) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto module = modules().find(handle);
  if (module == modules().end()) return CUDA_ERROR_INVALID_HANDLE;
  unload(module);
  return CUDA_SUCCESS;
}

CUresult module_function(CUfunction* function, CUmodule module, const char* name) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (*name == '\0') return CUDA_ERROR_NOT_FOUND;
  const std::scoped_lock lock(memory_mutex());
  if (!modules().contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  *function = next_module_handle<CUfunction>();
  functions()[*function] = {module, name};
  return CUDA_SUCCESS;
}

CUresult launch_kernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned, CUstream stream_handle, void** parameters,
                       void** extra) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  std::string name;
  {
    const std::scoped_lock lock(memory_mutex());
    const auto function = functions().find(handle);
    if (function == functions().end()) return CUDA_ERROR_INVALID_HANDLE;
    const Context* const owner = modules().at(function->second.module).context;
    if (owner != &root_of(*stream->context)) return CUDA_ERROR_INVALID_HANDLE;
    name = function->second.name;
  }
  for (const unsigned dimension : {grid_x, grid_y, grid_z, block_x, block_y, block_z}) {
    if (dimension == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  if (std::uint64_t{block_x} * block_y * block_z > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (extra != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (has_parameters(name) && parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return submit(*stream, work_of(name, *stream->context, parameters));
}

}  // namespace simcuda
