// SPDX-License-Identifier: Apache-2.0
// The exported functions, one for each line of hooks.def.
#include "interpose/hooks/actions.h"

namespace stalloc::hooks {
extern "C" {
#define STALLOC_HOOK(library, symbol, result, parameters, action)                               \
  __attribute__((visibility("default"))) result symbol parameters {                             \
    const Call<result parameters> call(original_of(Hook::symbol), __builtin_return_address(0)); \
    return action;                                                                              \
  }
#include "interpose/hooks/hooks.def"
#undef STALLOC_HOOK
}
}  // namespace stalloc::hooks
