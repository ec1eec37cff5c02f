// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress, both versions, and the per-thread forms of the stream functions.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "tests/simcuda/driver/api.h"
#include "tests/simcuda/driver/config.h"

namespace simcuda {
namespace {

enum class Form { Plain, PerThread };

struct Entry {
  const char* base;
  int version;
  Form form;
  void* function;
};

#define SIMCUDA_PLAIN(function, base, symbol, version, parameters) \
  {base, version, Form::Plain, reinterpret_cast<void*>(&function)},
#define SIMCUDA_PER_THREAD(function, base, symbol, version, parameters) \
  {base, version, Form::PerThread, reinterpret_cast<void*>(&function)},
#define SIMCUDA_STREAM(function, base, symbol, version, parameters, arguments) \
  {base, version, Form::Plain, reinterpret_cast<void*>(&function)},            \
      {base, std::max(version, 7000), Form::PerThread, reinterpret_cast<void*>(&function##_ptsz)},
const Entry kEntries[] = {
#include "tests/simcuda/driver/functions.h"
};
#undef SIMCUDA_PLAIN
#undef SIMCUDA_PER_THREAD
#undef SIMCUDA_STREAM

// The newest form of `base` that a program built against `version` knows.
const Entry* find(const char* base, int version, Form form, bool* known) {
  const Entry* best = nullptr;
  for (const Entry& entry : kEntries) {
    if (entry.form != form || std::strcmp(entry.base, base) != 0) continue;
    *known = true;
    if (entry.version <= version && (best == nullptr || entry.version > best->version)) best = &entry;
  }
  return best;
}

}  // namespace

CUresult get_proc_address_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool known = false;
  const Entry* entry = nullptr;
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
    entry = find(symbol, version, Form::PerThread, &known);
  }
  if (entry == nullptr) entry = find(symbol, version, Form::Plain, &known);
  *function = entry == nullptr ? nullptr : entry->function;
  if (status != nullptr) {
    *status = entry != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : known          ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return entry != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult get_proc_address(const char* symbol, void** function, int version, cuuint64_t flags) {
  return get_proc_address_v2(symbol, function, version, flags, nullptr);
}

#define SIMCUDA_PLAIN(function, base, symbol, version, parameters)
#define SIMCUDA_PER_THREAD(function, base, symbol, version, parameters)
#define SIMCUDA_STREAM(function, base, symbol, version, parameters, arguments) \
  CUresult function##_ptsz parameters { return function arguments; }
#include "tests/simcuda/driver/functions.h"
#undef SIMCUDA_PLAIN
#undef SIMCUDA_PER_THREAD
#undef SIMCUDA_STREAM

}  // namespace simcuda
