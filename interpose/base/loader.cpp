// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/loader.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <optional>

namespace stalloc::loader {
namespace {

struct ModuleSearch {
  const char* address;
  Module* module;
};

int visit_module(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<ModuleSearch*>(data);
  const char* low = nullptr;
  const char* high = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const char* begin = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    const char* end = begin + header.p_memsz;
    if (low == nullptr || begin < low) low = begin;
    if (end > high) high = end;
  }
  if (search.address < low || search.address >= high) return 0;
  *search.module = {low, high, info->dlpi_name};
  return 1;
}

// glibc 2.35 and newer can find a module without a lock. Older versions take a lock that fork does not release in the
// child, so the child would wait forever if another thread of its parent held the lock during the fork.
#ifdef DLFO_STRUCT_HAS_EH_DBASE
using FindObject = decltype(&_dl_find_object);

FindObject find_object() noexcept {
  static const auto function = reinterpret_cast<FindObject>(real_dlsym(RTLD_NEXT, "_dl_find_object"));
  return function;
}

std::optional<Module> find_without_lock(const void* address) noexcept {
  dl_find_object found;
  if (find_object()(const_cast<void*>(address), &found) != 0) return std::nullopt;
  return Module{static_cast<const char*>(found.dlfo_map_start), static_cast<const char*>(found.dlfo_map_end),
                found.dlfo_link_map->l_name};
}
#else
constexpr std::nullptr_t find_object() noexcept { return nullptr; }
std::optional<Module> find_without_lock(const void*) noexcept { return std::nullopt; }
#endif

int visit_definitions(dl_phdr_info* info, std::size_t, void* data) {
  const DynamicSymbols symbols(*info);
  for (Definitions& sought : *static_cast<std::span<Definitions>*>(data)) {
    void* const address = symbols.find(sought.symbol);
    if (address == nullptr || address == sought.except) continue;
    if (sought.count++ == 0) sought.first = address;
  }
  return 0;
}

struct SymbolSearch {
  const char* prefix;
  const char* symbol;
  char path[4096];
};

std::string_view file_name(const dl_phdr_info& info) {
  const std::string_view path = info.dlpi_name == nullptr ? "" : info.dlpi_name;
  return path.substr(path.rfind('/') + 1);
}

int visit_name(dl_phdr_info* info, std::size_t, void* data) {
  for (const std::string_view prefix : *static_cast<std::span<const std::string_view>*>(data)) {
    if (file_name(*info).starts_with(prefix)) return 1;
  }
  return 0;
}

int visit_library(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<SymbolSearch*>(data);
  if (!file_name(*info).starts_with(search.prefix)) return 0;
  if (std::strlen(info->dlpi_name) >= sizeof search.path) return 0;
  std::strcpy(search.path, info->dlpi_name);
  return 1;
}

// Null: no module contains the address.
const link_map* map_of(const void* address) noexcept {
  Dl_info info;
  void* map = nullptr;
  return dladdr1(address, &info, &map, RTLD_DL_LINKMAP) != 0 ? static_cast<const link_map*>(map) : nullptr;
}

}  // namespace

// glibc moved dlsym from libdl to libc in 2.34; aarch64 began at 2.17, x86-64 at 2.2.5.
DlsymFunction find_real_dlsym() noexcept {
  for (const char* version : {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"}) {
    if (void* found = dlvsym(RTLD_NEXT, "dlsym", version)) return reinterpret_cast<DlsymFunction>(found);
  }
  return nullptr;
}

void* real_dlsym(void* handle, const char* symbol) noexcept {
  static const DlsymFunction function = find_real_dlsym();
  return function == nullptr ? nullptr : function(handle, symbol);
}

void prepare() noexcept { (void)find_object(); }

void* open_loaded(const char* name) noexcept { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD); }

void pin(const void* address) noexcept {
  Module module;
  // The reference that dlopen takes is kept on purpose.
  if (find_module(address, &module) && module.path != nullptr && *module.path != '\0') (void)open_loaded(module.path);
}

bool find_module(const void* address, Module* module) noexcept {
  if (find_object() != nullptr) {
    const std::optional<Module> found = find_without_lock(address);
    if (found) *module = *found;
    return found.has_value();
  }
  ModuleSearch search{static_cast<const char*>(address), module};
  return dl_iterate_phdr(visit_module, &search) != 0;
}

void* find_by_module(const void* address, const char* symbol) noexcept {
  const link_map* const map = map_of(address);
  void* const handle = map == nullptr || *map->l_name == '\0' ? nullptr : open_loaded(map->l_name);
  if (handle == nullptr) return nullptr;
  // Closed before the search, since dlclose would clear the error of the search (dlerror). The handle stays valid as
  // long as the module is loaded.
  dlclose(handle);
  return real_dlsym(handle, symbol);
}

// The loader's list has the program and the libraries loaded with it in search order, and this order never changes.
bool precedes(const void* first, const void* second) noexcept {
  const link_map* const sought = map_of(first);
  const link_map* map = map_of(second);
  while (map != nullptr && (map = map->l_prev) != sought) {
  }
  return map != nullptr;
}

bool any_loaded(std::span<const std::string_view> prefixes) noexcept {
  return dl_iterate_phdr(visit_name, &prefixes) != 0;
}

void find_definitions(std::span<Definitions> sought) noexcept { dl_iterate_phdr(visit_definitions, &sought); }

void* find_in_loaded(const char* prefix, const char* symbol) noexcept {
  SymbolSearch search{prefix, symbol, {}};
  // dlopen must not be called inside dl_iterate_phdr, so the path is copied first.
  if (dl_iterate_phdr(visit_library, &search) == 0) return nullptr;
  void* handle = open_loaded(search.path);
  return handle == nullptr ? nullptr : real_dlsym(handle, symbol);
}

}  // namespace stalloc::loader
