// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress, by which the CUDA runtime and newer libraries find the driver's functions.
#include "interpose/hooks/actions.h"

#include <cstring>

namespace stalloc::hooks::lookup {
namespace {

// Returns our function instead of `real`, which is the driver's or that of a library preloaded behind this one. The
// driver has chosen a variant of the name (_v2, _ptsz) by version and flags, so the hook is found by comparing
// addresses. An address without a hook, such as that of a newer variant with other parameters, is returned unchanged.
void* replace(const char* name, void* real, const void* caller) noexcept {
  const std::size_t length = std::strlen(name);
  for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(Hook::kCount); ++i) {
    const auto hook = static_cast<Hook>(i);
    if (library_of(hook) != Library::Driver || std::strncmp(symbol_of(hook), name, length) != 0) continue;
    Original& original = original_of(hook);
    if (driver_function(hook) == real) original.remember(real);
    // What is not known by now, the driver lacks: it is not searched for again, since a search takes the loader's lock.
    void* const known = original.is_known() ? original.find(caller) : nullptr;
    if (driver_function(hook) != real && known != real) continue;
    return belongs_to(known, caller) ? real : replacement_of(hook);
  }
  Session::captures().note_lookup(name);
  events::looked_up(name);
  return real;
}

CUresult replace_found(CUresult result, const char* name, void** address, const void* caller) noexcept {
  if (result == CUDA_SUCCESS && name != nullptr && address != nullptr && *address != nullptr &&
      Session::get().active()) {
    *address = replace(name, *address, caller);
  }
  return result;
}

}  // namespace

CUresult get_proc_address(const Call<CUresult(const char*, void**, int, cuuint64_t)>& call, const char* name,
                          void** address, int version, cuuint64_t flags) noexcept {
  return replace_found(call.original(name, address, version, flags), name, address, call.caller());
}

CUresult get_proc_address_v2(
    const Call<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>& call, const char* name,
    void** address, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) noexcept {
  return replace_found(call.original(name, address, version, flags, status), name, address, call.caller());
}

}  // namespace stalloc::hooks::lookup
