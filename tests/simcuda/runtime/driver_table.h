// SPDX-License-Identifier: Apache-2.0
// The driver functions that the runtime calls, found as the real runtime finds them: it opens libcuda.so.1, looks up
// cuGetProcAddress_v2 by dlsym, and finds everything else through that.
#pragma once

#include "tests/simcuda/driver/api.h"

namespace simcuda::runtime {

struct DriverTable {
#define SIMCUDA_PLAIN(function, base, symbol, version, parameters) decltype(&simcuda::function) function = nullptr;
#define SIMCUDA_PER_THREAD(function, base, symbol, version, parameters)
#define SIMCUDA_STREAM(function, base, symbol, version, parameters, arguments) \
  decltype(&simcuda::function) function = nullptr;
#include "tests/simcuda/driver/functions.h"
#undef SIMCUDA_PLAIN
#undef SIMCUDA_PER_THREAD
#undef SIMCUDA_STREAM
};

// The first call loads the driver. Null when there is none.
const DriverTable* driver_table(bool per_thread_default_stream);

}  // namespace simcuda::runtime
