// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/dynamic_symbols.h"

#include <cstdint>
#include <cstring>

namespace stalloc::loader {
namespace {

// A module's dynamic symbols.
struct Symbols {
  const ElfW(Sym) * table = nullptr;
  const char* names = nullptr;
  const std::uint32_t* gnu_hash = nullptr;
  const std::uint32_t* hash = nullptr;

  // Null: the module does not define it.
  [[nodiscard]] const ElfW(Sym) * find(const char* name) const noexcept {
    if (table == nullptr || names == nullptr) return nullptr;
    return gnu_hash != nullptr ? find_hashed(name) : find_in_all(name);
  }

 private:
  [[nodiscard]] bool is(const ElfW(Sym) & symbol, const char* name) const noexcept {
    const auto type = ELF64_ST_TYPE(symbol.st_info);
    return symbol.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_OBJECT) &&
           std::strcmp(names + symbol.st_name, name) == 0;
  }
  // In a table of DT_GNU_HASH: four numbers, a Bloom filter, the first symbol of each bucket, and for each symbol its
  // hash value, whose lowest bit marks the bucket's last one.
  [[nodiscard]] const ElfW(Sym) * find_hashed(const char* name) const noexcept {
    const std::uint32_t buckets = gnu_hash[0];
    const std::uint32_t first = gnu_hash[1];
    const std::uint32_t* const bucket = gnu_hash + 4 + gnu_hash[2] * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
    const std::uint32_t* const chain = bucket + buckets;
    std::uint32_t value = 5381;
    for (const char* at = name; *at != '\0'; ++at) value = value * 33 + static_cast<unsigned char>(*at);
    std::uint32_t at = buckets == 0 ? 0 : bucket[value % buckets];
    if (at < first) return nullptr;
    for (;; ++at) {
      const std::uint32_t found = chain[at - first];
      if ((found | 1) == (value | 1) && is(table[at], name)) return &table[at];
      if ((found & 1) != 0) return nullptr;
    }
  }
  [[nodiscard]] const ElfW(Sym) * find_in_all(const char* name) const noexcept {
    const std::uint32_t count = hash == nullptr ? 0 : hash[1];
    for (std::uint32_t at = 0; at < count; ++at) {
      if (is(table[at], name)) return &table[at];
    }
    return nullptr;
  }
};

Symbols symbols_of(const dl_phdr_info& info) noexcept {
  Symbols symbols;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      // The loader has added the module's address, except in modules that it cannot write to, such as the vDSO.
      const ElfW(Addr) value = entry->d_un.d_ptr;
      const ElfW(Addr) address = value < info.dlpi_addr ? info.dlpi_addr + value : value;
      if (entry->d_tag == DT_SYMTAB) symbols.table = reinterpret_cast<const ElfW(Sym)*>(address);
      if (entry->d_tag == DT_STRTAB) symbols.names = reinterpret_cast<const char*>(address);
      if (entry->d_tag == DT_GNU_HASH) symbols.gnu_hash = reinterpret_cast<const std::uint32_t*>(address);
      if (entry->d_tag == DT_HASH) symbols.hash = reinterpret_cast<const std::uint32_t*>(address);
    }
  }
  return symbols;
}

}  // namespace

void* find_definition(const dl_phdr_info& info, const char* name) noexcept {
  const ElfW(Sym)* symbol = symbols_of(info).find(name);
  return symbol == nullptr ? nullptr : reinterpret_cast<void*>(info.dlpi_addr + symbol->st_value);
}

}  // namespace stalloc::loader
