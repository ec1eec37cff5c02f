// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/readable.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "interpose/base/kept_errno.h"

namespace stalloc::record {
namespace {

constexpr std::uintptr_t kPage = 4096;  // the smallest page size of Linux; larger pages are checked more than once
constexpr std::uintptr_t kWord = 8;     // the bytes that the kernel reads
constexpr int kInvalidOperation = -1;

bool word_is_readable(std::uintptr_t address) noexcept {
  return syscall(SYS_rt_sigprocmask, kInvalidOperation, address, nullptr, kWord) == -1 && errno == EINVAL;
}

// False under an emulator that reports the invalid operation before it reads the argument.
bool kernel_validates() noexcept {
  constexpr std::uintptr_t kNeverThere = kWord;
  return !word_is_readable(kNeverThere);
}

}  // namespace

bool is_readable(const void* address, std::size_t bytes) noexcept {
  const KeptErrno kept;
  static const bool validates = kernel_validates();
  const auto from = reinterpret_cast<std::uintptr_t>(address);
  bool readable = validates && bytes > 0 && from + bytes > from;
  if (readable) {
    const std::uintptr_t last = (from + bytes - 1) / kWord * kWord;
    readable = word_is_readable(last);
    for (std::uintptr_t at = from / kWord * kWord; readable && at < last; at = (at / kPage + 1) * kPage) {
      readable = word_is_readable(at);
    }
  }
  return readable;
}

}  // namespace stalloc::record
