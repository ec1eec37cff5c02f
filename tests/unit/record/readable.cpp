// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/readable.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "catch.h"

using stalloc::record::is_readable;

TEST_CASE("what is mapped can be read, and nothing else") {
  const int on_stack = 0;
  if (!is_readable(&on_stack, sizeof on_stack)) {
    WARN("the kernel does not say what can be read");
    return;
  }
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const mapped = mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  char* const pages = static_cast<char*>(mapped);
  REQUIRE(mprotect(pages + 2 * page, page, PROT_NONE) == 0);
  errno = 7;
  CHECK(is_readable(pages, 2 * page));
  CHECK(is_readable(pages + 2 * page - 1, 1));
  CHECK_FALSE(is_readable(pages + 2 * page - 1, 2));
  CHECK_FALSE(is_readable(pages, 2 * page + 1));
  CHECK_FALSE(is_readable(pages + 2 * page, 1));
  CHECK_FALSE(is_readable(pages, SIZE_MAX));
  CHECK_FALSE(is_readable(nullptr, 8));
  CHECK_FALSE(is_readable(reinterpret_cast<const void*>(UINTPTR_MAX - 3), 8));
  CHECK(errno == 7);
  munmap(mapped, 3 * page);
  CHECK_FALSE(is_readable(pages, 1));
}
