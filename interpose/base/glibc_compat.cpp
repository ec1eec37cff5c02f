// The C++ library linked into ours may have been built against a newer glibc than the one that loads it. What it would
// ask of the newer one is answered here, from what glibc 2.34 has; the definitions stay inside the library.
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

#if __GLIBC_PREREQ(2, 38)  // GCC's emergency pool for exceptions reads its size by the strtoul of C23
extern "C" unsigned long older_strtoul(const char* text, char** end, int base) noexcept __asm__("strtoul");

extern "C" __attribute__((visibility("hidden"))) unsigned long __isoc23_strtoul(const char* text, char** end,
                                                                                int base) noexcept {
  return older_strtoul(text, end, base);  // they differ in binary numbers alone
}
#endif
