// SPDX-License-Identifier: Apache-2.0
// The C++ library linked into our library and stalloc-plan may have been built against a newer glibc than the one that
// loads them. The newer functions that it needs are defined here with what glibc 2.34 has; the definitions are not
// exported.
#include <dlfcn.h>

#include <cstddef>

#ifdef DLFO_STRUCT_HAS_EH_DBASE  // glibc 2.35 and newer: GCC's unwinder calls _dl_find_object
#include <link.h>

namespace {

struct Search {
  const char* address;
  dl_find_object* found;
};

int visit(dl_phdr_info* info, std::size_t, void* data) {
  const auto& search = *static_cast<Search*>(data);
  const ElfW(Phdr)* frames = nullptr;
  bool holds = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    char* begin = reinterpret_cast<char*>(info->dlpi_addr + header.p_vaddr);
    if (header.p_type == PT_GNU_EH_FRAME) frames = &header;
    if (header.p_type != PT_LOAD || search.address < begin || search.address >= begin + header.p_memsz) continue;
    holds = true;
    search.found->dlfo_map_start = begin;
    search.found->dlfo_map_end = begin + header.p_memsz;
  }
  if (!holds || frames == nullptr) return 0;
  search.found->dlfo_eh_frame = reinterpret_cast<void*>(info->dlpi_addr + frames->p_vaddr);
  return 1;
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) int _dl_find_object(void* address, dl_find_object* result) noexcept {
  Search search{static_cast<const char*>(address), result};
  return dl_iterate_phdr(visit, &search) != 0 ? 0 : -1;
}
#endif

#if __GLIBC_PREREQ(2, 36)  // std::random_device
#include <sys/random.h>

#include <cstdint>

extern "C" __attribute__((visibility("hidden"))) std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  const int failed = getentropy(&number, sizeof number);  // only on a kernel before 3.17; nothing of ours asks
  (void)failed;
  return number;
}
#endif

// Programs built with a newer glibc, and GCC's emergency pool for exceptions, read numbers by the functions of C23,
// which differ from the older ones in binary numbers alone.
#if __GLIBC_PREREQ(2, 38)
#define STALLOC_READS_AS_BEFORE_C23(result, function)                                                     \
  extern "C" result older_##function(const char* text, char** end, int base) noexcept __asm__(#function); \
  extern "C" __attribute__((visibility("hidden")))                                                        \
  result __isoc23_##function(const char* text, char** end, int base) noexcept {                           \
    return older_##function(text, end, base);                                                             \
  }
STALLOC_READS_AS_BEFORE_C23(long, strtol)
STALLOC_READS_AS_BEFORE_C23(unsigned long, strtoul)
STALLOC_READS_AS_BEFORE_C23(long long, strtoll)
STALLOC_READS_AS_BEFORE_C23(unsigned long long, strtoull)
#undef STALLOC_READS_AS_BEFORE_C23
#endif
