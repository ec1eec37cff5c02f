// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/runtime/driver_table.h"

#include <dlfcn.h>

#include <array>

namespace simcuda::runtime {
namespace {

using GetProcAddress = decltype(&simcuda::get_proc_address_v2);

// Looks up each function with the version that introduced its form, as the real runtime asks for the form against which
// it was built.
bool fill(DriverTable& table, GetProcAddress find, cuuint64_t flags) {
  bool complete = true;
  const auto get = [&](const char* base, int version, auto& slot) {
    void* function = nullptr;
    const CUresult result = find(base, &function, version, flags, nullptr);
    complete = complete && result == CUDA_SUCCESS && function != nullptr;
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(function);
  };
#define SIMCUDA_PLAIN(function, base, symbol, version, parameters) get(base, version, table.function);
#define SIMCUDA_PER_THREAD(function, base, symbol, version, parameters)
#define SIMCUDA_STREAM(function, base, symbol, version, parameters, arguments) \
  get(base, version < 7000 ? 7000 : version, table.function);
#include "tests/simcuda/driver/functions.h"
#undef SIMCUDA_PLAIN
#undef SIMCUDA_PER_THREAD
#undef SIMCUDA_STREAM
  return complete;
}

struct Tables {
  std::array<DriverTable, 2> by_mode;
  bool loaded = false;
};

Tables load() {
  Tables tables;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return tables;
  const auto find = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) return tables;
  tables.loaded = fill(tables.by_mode[0], find, CU_GET_PROC_ADDRESS_LEGACY_STREAM) &&
                  fill(tables.by_mode[1], find, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  return tables;
}

}  // namespace

const DriverTable* driver_table(bool per_thread_default_stream) {
  static const Tables tables = load();
  return tables.loaded ? &tables.by_mode[per_thread_default_stream ? 1 : 0] : nullptr;
}

}  // namespace simcuda::runtime
