// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/copy_mark.h"

#include <sys/mman.h>
#include <unistd.h>

namespace stalloc {

CopyMark::CopyMark() noexcept : process_(::getpid()) {
  void* const page = ::mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, 1, MADV_WIPEONFORK) != 0) {
    ::munmap(page, 1);
    return;
  }
  *static_cast<char*>(page) = 1;
  page_ = static_cast<char*>(page);
}

CopyMark::~CopyMark() {
  if (page_ != nullptr) ::munmap(const_cast<char*>(page_), 1);
}

bool CopyMark::is_other_process() const noexcept { return ::getpid() != process_; }

}  // namespace stalloc
