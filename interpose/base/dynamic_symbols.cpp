// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/dynamic_symbols.h"

#include <cstring>

namespace stalloc::loader {

DynamicSymbols::DynamicSymbols(const dl_phdr_info& info) noexcept : base_(info.dlpi_addr) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(base_ + info.dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      // The loader has added the module's address, except in modules that it cannot write to, such as the vDSO.
      const ElfW(Addr) value = entry->d_un.d_ptr;
      const ElfW(Addr) address = value < base_ ? base_ + value : value;
      if (entry->d_tag == DT_SYMTAB) table_ = reinterpret_cast<const ElfW(Sym)*>(address);
      if (entry->d_tag == DT_STRTAB) names_ = reinterpret_cast<const char*>(address);
      if (entry->d_tag == DT_GNU_HASH) gnu_hash_ = reinterpret_cast<const std::uint32_t*>(address);
      if (entry->d_tag == DT_HASH) hash_ = reinterpret_cast<const std::uint32_t*>(address);
    }
  }
}

void* DynamicSymbols::find(const SymbolName& name) const noexcept {
  if (table_ == nullptr || names_ == nullptr) return nullptr;
  const ElfW(Sym)* const symbol = gnu_hash_ != nullptr ? find_hashed(name) : find_in_all(name.text);
  return symbol == nullptr ? nullptr : reinterpret_cast<void*>(base_ + symbol->st_value);
}

bool DynamicSymbols::is(const ElfW(Sym) & symbol, const char* name) const noexcept {
  const auto type = ELF64_ST_TYPE(symbol.st_info);
  return symbol.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_OBJECT) &&
         std::strcmp(names_ + symbol.st_name, name) == 0;
}

// In a table of DT_GNU_HASH: four numbers, a Bloom filter, the first symbol of each bucket, and for each symbol its
// hash value, whose lowest bit marks the bucket's last one. The filter rules out most modules by itself.
const ElfW(Sym) * DynamicSymbols::find_hashed(const SymbolName& name) const noexcept {
  constexpr std::uint32_t kWordBits = sizeof(ElfW(Addr)) * 8;
  const std::uint32_t buckets = gnu_hash_[0];
  const std::uint32_t first = gnu_hash_[1];
  const std::uint32_t words = gnu_hash_[2];
  const auto* const filter = reinterpret_cast<const ElfW(Addr)*>(gnu_hash_ + 4);
  if (buckets == 0 || words == 0) return nullptr;
  const ElfW(Addr) word = filter[name.hash / kWordBits % words];
  if ((word >> name.hash % kWordBits & word >> (name.hash >> gnu_hash_[3]) % kWordBits & 1) == 0) return nullptr;
  const auto* const bucket = reinterpret_cast<const std::uint32_t*>(filter + words);
  const std::uint32_t* const chain = bucket + buckets;
  std::uint32_t at = bucket[name.hash % buckets];
  if (at < first) return nullptr;
  for (;; ++at) {
    const std::uint32_t found = chain[at - first];
    if ((found | 1) == (name.hash | 1) && is(table_[at], name.text)) return &table_[at];
    if ((found & 1) != 0) return nullptr;
  }
}

const ElfW(Sym) * DynamicSymbols::find_in_all(const char* name) const noexcept {
  const std::uint32_t count = hash_ == nullptr ? 0 : hash_[1];
  for (std::uint32_t at = 0; at < count; ++at) {
    if (is(table_[at], name)) return &table_[at];
  }
  return nullptr;
}

}  // namespace stalloc::loader
