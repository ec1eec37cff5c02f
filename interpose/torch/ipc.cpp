// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/ipc.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "interpose/base/file_descriptor.h"
#include "interpose/base/quiet_writes.h"
#include "interpose/torch/context_wait.h"

namespace stalloc::torch {
namespace {

using serve::MappedHandle;

// Headers of older systems lack these system calls; their numbers are the same on all machines.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;

// An IPC handle is a header, followed by an entry for each handle of the block's memory. No IPC handle of CUDA or
// PyTorch begins with the same bytes.
struct IpcHeader {
  std::array<char, 12> magic{};
  std::int32_t process = 0;
  std::uint64_t entries = 0;
};
struct IpcEntry {
  std::int64_t descriptor = -1;  // in that process
  std::uint64_t bytes = 0;
};
constexpr std::array<char, 12> kMagic{'s', 't', 'a', 'l', 'l', 'o', 'c', '-', 'i', 'p', 'c', '1'};
constexpr std::size_t kMagicWithoutVersion = 11;

// The descriptors of exported handles, each counted by the exported blocks that use it.
class ExportedHandles {
 public:
  // Returns the handle's descriptor; -1 if the driver cannot export it.
  int acquire(serve::Driver& driver, CUmemGenericAllocationHandle handle) {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = exports_.try_emplace(handle);
    if (is_new && driver.export_handle(handle, &found->second.descriptor) != CUDA_SUCCESS) {
      exports_.erase(found);
      return -1;
    }
    // A program that is executed later must not inherit the descriptor, which would keep the memory allocated.
    if (is_new) ::fcntl(found->second.descriptor, F_SETFD, FD_CLOEXEC);
    ++found->second.users;
    return found->second.descriptor;
  }
  void release(CUmemGenericAllocationHandle handle) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = exports_.find(handle);
    if (--found->second.users > 0) return;
    ::close(found->second.descriptor);
    exports_.erase(found);
  }

 private:
  struct Export {
    int descriptor = -1;
    std::size_t users = 0;
  };
  std::mutex mutex_;
  std::map<CUmemGenericAllocationHandle, Export> exports_;
};

ExportedHandles& exported_handles() {
  static auto* const all = new ExportedHandles();
  return *all;
}

const char* export_failure() noexcept {
  const int probe = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool none_left = probe < 0 && (errno == EMFILE || errno == ENFILE);
  if (probe >= 0) ::close(probe);
  return none_left ? "no file descriptor is left, and each handle of its memory needs one (raise ulimit -n)"
                   : "its memory was created before PyTorch was there, or the device cannot share memory";
}

// Another process's memory, mapped here.
struct Import {
  int device = 0;
  CUcontext context = nullptr;
  CUdeviceptr base = 0;
  std::uint64_t reserved_bytes = 0;
  std::vector<std::uint64_t> mapped;  // bytes of each mapped handle, in the order of their addresses
};

// If the driver refuses to unmap a part, the addresses stay reserved.
void unmap(serve::Driver& driver, const Import& memory) noexcept {
  CUdeviceptr at = memory.base;
  bool all = true;
  for (const std::uint64_t bytes : memory.mapped) {
    all = driver.unmap(at, bytes) == CUDA_SUCCESS && all;
    at += bytes;
  }
  if (all && memory.base != 0) driver.unreserve(memory.base, memory.reserved_bytes);
}

// Unmaps an import when it is destroyed, unless `is_kept` was set.
struct UnmapUnlessKept {
  UnmapUnlessKept(serve::Driver& its_driver, const Import& its_memory) noexcept
      : driver(its_driver), memory(its_memory) {}
  ~UnmapUnlessKept() {
    if (!is_kept) unmap(driver, memory);
  }
  UnmapUnlessKept(const UnmapUnlessKept&) = delete;
  UnmapUnlessKept& operator=(const UnmapUnlessKept&) = delete;

  serve::Driver& driver;
  const Import& memory;
  bool is_kept = false;
};

// All imports of this process, and which other devices may access them.
class Imports {
 public:
  // Makes a mapped import accessible, and keeps it. False if the driver refuses access.
  bool add(serve::Driver& driver, const Import& memory) {
    const std::lock_guard lock(mutex_);
    if (!set_access(driver, memory)) return false;
    imports_.emplace(memory.base, memory);
    return true;
  }
  void add_peer(serve::Driver& driver, int device, int peer) {
    const std::lock_guard lock(mutex_);
    if (!peers_[device].insert(peer).second) return;
    for (const auto& [base, memory] : imports_) {
      if (memory.device == device) set_access(driver, memory);
    }
  }
  void remove(serve::Driver& driver, CUdeviceptr base) {
    const std::lock_guard lock(mutex_);
    const auto found = imports_.find(base);
    if (found == imports_.end()) return;
    removed_.push_back(std::move(found->second));
    imports_.erase(found);
    unmap_removed_locked(driver);
  }
  void unmap_removed(serve::Driver& driver) {
    const std::lock_guard lock(mutex_);
    unmap_removed_locked(driver);
  }

 private:
  bool set_access(serve::Driver& driver, const Import& memory) {
    std::vector<int> devices{memory.device};
    const std::set<int>& peers = peers_[memory.device];
    devices.insert(devices.end(), peers.begin(), peers.end());
    return driver.set_access(memory.base, memory.reserved_bytes, devices) == CUDA_SUCCESS;
  }
  void unmap_removed_locked(serve::Driver& driver) {
    for (; !removed_.empty(); removed_.pop_back()) {
      const serve::ContextScope scope(driver, removed_.back().context);
      const CUresult waited = scope.ok() ? wait_for_context(driver) : CUDA_ERROR_INVALID_CONTEXT;
      const bool is_later = waited == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || waited == CUDA_ERROR_OUT_OF_MEMORY;
      if (is_later) return;
      // If the context is gone or broken, the memory stays mapped until the process ends.
      if (waited == CUDA_SUCCESS) unmap(driver, removed_.back());
    }
  }

  std::mutex mutex_;
  std::map<CUdeviceptr, Import> imports_;
  std::vector<Import> removed_;         // not unmapped yet
  std::map<int, std::set<int>> peers_;  // by device: the devices that may access its imports
};

Imports& imports() {
  static auto* const all = new Imports();
  return *all;
}

// Returns the entries of an IPC handle; none if it is damaged or of another version.
std::vector<IpcEntry> parse_ipc_handle(std::string_view text, IpcHeader* header) {
  if (text.size() < sizeof *header) return {};
  std::memcpy(header, text.data(), sizeof *header);
  const std::size_t rest = text.size() - sizeof *header;
  if (header->magic != kMagic || rest % sizeof(IpcEntry) != 0 || header->entries != rest / sizeof(IpcEntry)) return {};
  std::vector<IpcEntry> entries(rest / sizeof(IpcEntry));
  if (rest > 0) std::memcpy(entries.data(), text.data() + sizeof *header, rest);
  return entries;
}

bool map_descriptor(serve::Driver& driver, int descriptor, CUdeviceptr at, std::uint64_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  if (driver.import_handle(descriptor, &handle) != CUDA_SUCCESS) return false;
  const CUresult mapped = driver.map(at, bytes, handle);
  driver.release(handle);  // the mapping keeps the memory allocated
  return mapped == CUDA_SUCCESS;
}

// On failure returns false, and `memory` describes what was reserved and mapped until then.
bool map_entries(serve::Driver& driver, int process, const std::vector<IpcEntry>& entries, Import* memory,
                 const char** why) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 48;
  for (const IpcEntry& entry : entries) {
    if (entry.bytes > kMaxBytes - memory->reserved_bytes) return *why = "the handle is damaged", false;
    memory->reserved_bytes += entry.bytes;
  }
  const FileDescriptor sender(static_cast<int>(::syscall(kPidfdOpen, process, 0)));
  if (sender.number() < 0) {
    return *why =
               "the process that shares it is gone or cannot be named from here (pidfd_open failed; do both run in one "
               "container, on Linux 5.6 or newer?)",
           false;
  }
  memory->mapped.reserve(entries.size());
  if (driver.reserve(&memory->base, memory->reserved_bytes) != CUDA_SUCCESS) {
    return *why = "no addresses are left", false;
  }
  CUdeviceptr at = memory->base;
  for (const IpcEntry& entry : entries) {
    const FileDescriptor copy(
        static_cast<int>(::syscall(kPidfdGetfd, sender.number(), static_cast<int>(entry.descriptor), 0)));
    if (copy.number() < 0) {
      return *why =
                 "the other process's file descriptors may not be taken (pidfd_getfd failed; both must run as one "
                 "user, and kernel.yama.ptrace_scope or the container's seccomp profile must allow it)",
             false;
    }
    if (!map_descriptor(driver, copy.number(), at, entry.bytes)) return *why = "the driver refused to map it", false;
    memory->mapped.push_back(entry.bytes);
    at += entry.bytes;
  }
  return true;
}

}  // namespace

std::unique_ptr<ExportedBlock> ExportedBlock::create(serve::Heap& heap, serve::Driver& driver, CUdeviceptr address,
                                                     const char** why) noexcept {
  const NoCancellation guard;
  try {
    const std::optional<serve::Heap::Backing> backing = heap.backing(address);
    if (!backing) return *why = "no tensor begins there", nullptr;
    std::unique_ptr<ExportedBlock> block(new ExportedBlock());
    block->offset_ = backing->offset;
    block->handles_.reserve(backing->handles.size());
    IpcHeader header;
    header.magic = kMagic;
    header.process = ::getpid();
    header.entries = backing->handles.size();
    block->ipc_handle_.assign(reinterpret_cast<const char*>(&header), sizeof header);
    for (const MappedHandle& handle : backing->handles) {
      const IpcEntry entry{exported_handles().acquire(driver, handle.id), handle.bytes};
      if (entry.descriptor < 0) return *why = export_failure(), nullptr;
      block->handles_.push_back(handle.id);
      block->ipc_handle_.append(reinterpret_cast<const char*>(&entry), sizeof entry);
    }
    return block;
  } catch (const std::exception&) {
    return *why = "the host is out of memory", nullptr;
  }
}

ExportedBlock::~ExportedBlock() {
  const NoCancellation guard;
  for (const CUmemGenericAllocationHandle handle : handles_) exported_handles().release(handle);
}

bool is_ipc_handle(std::string_view text) noexcept {
  return text.size() >= kMagic.size() && std::memcmp(text.data(), kMagic.data(), kMagicWithoutVersion) == 0;
}

CUdeviceptr map_import(serve::Driver& driver, int device, std::string_view ipc_handle, const char** why) noexcept {
  const NoCancellation guard;
  try {
    imports().unmap_removed(driver);
    IpcHeader header;
    const std::vector<IpcEntry> entries = parse_ipc_handle(ipc_handle, &header);
    if (entries.empty()) return *why = "the handle is damaged, or of another version of stalloc", 0;
    Import memory;
    memory.device = device;
    if (driver.current_context(&memory.context) != CUDA_SUCCESS || memory.context == nullptr) {
      return *why = "the thread has no CUDA context", 0;
    }
    UnmapUnlessKept mapping(driver, memory);
    if (!map_entries(driver, header.process, entries, &memory, why)) return 0;
    mapping.is_kept = imports().add(driver, memory);
    if (!mapping.is_kept) return *why = "the driver gave no access to it", 0;
    return memory.base;
  } catch (const std::exception&) {
    return *why = "the host is out of memory", 0;
  }
}

void grant_imports(serve::Driver& driver, int device, int peer) noexcept {
  try {
    imports().add_peer(driver, device, peer);
  } catch (const std::exception&) {
    // The host is out of memory: the peer's accesses fail.
  }
}

void unmap_import(serve::Driver& driver, CUdeviceptr base) noexcept {
  try {
    imports().remove(driver, base);
  } catch (const std::exception&) {
    // The memory stays mapped until the process ends.
  }
}

}  // namespace stalloc::torch
