// SPDX-License-Identifier: Apache-2.0
// Uses CUDA in one child process after another while the host refuses memory to the preloaded library: in each child
// from another call on, for once or for good. CUDA's calls succeed all the same.
#include <cuda_runtime_api.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

extern "C" {
void* __libc_malloc(std::size_t bytes);                           // NOLINT: glibc's own names
void* __libc_calloc(std::size_t count, std::size_t bytes);        // NOLINT
void* __libc_realloc(void* memory, std::size_t bytes);            // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT
}

namespace {

enum class Refused { Once, ForGood };

std::uintptr_t library_begin = 0;
std::uintptr_t library_end = 0;
bool counts = false;  // calls from the preloaded library
long granted = 0;     // how many of them succeed first
bool refuses_one = false;

bool is_refused(const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  if (!counts || address < library_begin || address >= library_end || granted-- > 0) return false;
  if (refuses_one) counts = false;
  errno = ENOMEM;
  return true;
}

// The first library that LD_PRELOAD names. Without one, nothing is refused.
int find_library(dl_phdr_info* info, std::size_t, void* path) {
  if (std::strcmp(info->dlpi_name, static_cast<const char*>(path)) != 0) return 0;
  library_begin = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type == PT_LOAD) library_end = info->dlpi_addr + header.p_vaddr + header.p_memsz;
  }
  return 1;
}

int failed_calls() {
  cudaStream_t streams[2] = {};
  void* memory[2] = {};
  int failures = 0;
  for (int i = 0; i < 2; ++i) {
    failures += cudaStreamCreate(&streams[i]) != cudaSuccess ? 1 : 0;
    failures += cudaMallocAsync(&memory[i], std::size_t{3} << 20, streams[i]) != cudaSuccess ? 1 : 0;
  }
  for (int i = 0; i < 2; ++i) failures += cudaFreeAsync(memory[i], streams[1 - i]) != cudaSuccess ? 1 : 0;
  failures += cudaMalloc(&memory[0], std::size_t{9} << 20) != cudaSuccess ? 1 : 0;
  failures += cudaFree(memory[0]) != cudaSuccess ? 1 : 0;
  return failures;
}

// The child's exit status: 0, calls failed, or fewer calls than `first` requested memory.
constexpr int kFailed = 1;
constexpr int kNoneRefused = 2;
int run_child(long first, Refused refused) {
  const pid_t child = fork();
  if (child == 0) {
    cudaFree(nullptr);  // so that CUDA's own start is over
    granted = first;
    refuses_one = refused == Refused::Once;
    counts = true;
    const bool failed = failed_calls() != 0;
    const bool none = granted >= 0;
    counts = false;
    _exit(failed ? kFailed : none ? kNoneRefused : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

extern "C" {
void* malloc(std::size_t bytes) { return is_refused(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes); }
void* calloc(std::size_t count, std::size_t bytes) {
  return is_refused(__builtin_return_address(0)) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  return is_refused(__builtin_return_address(0)) ? nullptr : __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return is_refused(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  if (is_refused(__builtin_return_address(0))) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}
}

int main() {
  if (char* preloaded = std::getenv("LD_PRELOAD")) dl_iterate_phdr(find_library, preloaded);
  int bad = 0;
  long refusals = 0;
  for (const Refused refused : {Refused::Once, Refused::ForGood}) {
    for (long first = 0;; ++first) {
      const int status = run_child(first, refused);
      if (WIFEXITED(status) && WEXITSTATUS(status) == kNoneRefused) break;
      ++refusals;
      if (status == 0) continue;
      ++bad;
      std::fprintf(stderr, "from call %ld on, %s: status %d\n", first, refused == Refused::Once ? "once" : "for good",
                   status);
    }
  }
  std::printf("children with failures: %d\n", bad);
  // If the library requested memory in no call, the test shows nothing.
  return library_end != 0 && refusals == 0 ? 1 : 0;
}
