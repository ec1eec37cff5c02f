// SPDX-License-Identifier: Apache-2.0
// Looks a symbol up in the tables of one module, as dlsym does, but without the dynamic loader's lock.
#pragma once

#include <link.h>

#include <cstdint>

namespace stalloc::loader {

// A symbol's name and its hash value in tables of DT_GNU_HASH. The text must live as long as this.
struct SymbolName {
  constexpr SymbolName() noexcept = default;
  constexpr SymbolName(const char* name) noexcept : text(name), hash(5381) {  // NOLINT(google-explicit-constructor)
    for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  }
  const char* text = "";
  std::uint32_t hash = 5381;
};

// The tables of one module. Reads nothing but the module's tables, allocates nothing, throws nothing. Valid as long as
// the module is loaded.
class DynamicSymbols {
 public:
  // `info` is what dl_iterate_phdr passes to its callback.
  explicit DynamicSymbols(const dl_phdr_info& info) noexcept;
  // The address of the function or object of this name that the module defines; null: it defines none.
  [[nodiscard]] void* find(const SymbolName& name) const noexcept;

 private:
  [[nodiscard]] bool is(const ElfW(Sym) & symbol, const char* name) const noexcept;
  [[nodiscard]] const ElfW(Sym) * find_hashed(const SymbolName& name) const noexcept;
  [[nodiscard]] const ElfW(Sym) * find_in_all(const char* name) const noexcept;

  ElfW(Addr) base_ = 0;  // is added to the addresses in the tables
  const ElfW(Sym) * table_ = nullptr;
  const char* names_ = nullptr;
  const std::uint32_t* gnu_hash_ = nullptr;
  const std::uint32_t* hash_ = nullptr;
};

}  // namespace stalloc::loader
