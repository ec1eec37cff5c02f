// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/offer.h"

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

#include "interpose/session/session.h"

namespace stalloc::torch {
namespace {

using serve::MappedHandle;

// Headers of older systems lack them; the numbers are the same on all machines.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;

// A text: this, and a piece for each handle. Its first bytes are those of no handle of CUDA's or PyTorch's.
struct Header {
  std::array<char, 12> magic{};
  std::int32_t process = 0;
  std::uint64_t pieces = 0;
};
struct Piece {
  std::int64_t file = -1;  // of that process
  std::uint64_t bytes = 0;
};
constexpr std::array<char, 12> kMagic{'s', 't', 'a', 'l', 'l', 'o', 'c', '-', 'i', 'p', 'c', '1'};
constexpr std::size_t kMagicWithoutVersion = 11;

// Descriptors of exported handles, by handle, with the number of offers that need them.
class Files {
 public:
  // -1 when the driver refuses.
  int take(serve::Driver& driver, CUmemGenericAllocationHandle handle) {
    const std::lock_guard lock(mutex_);
    const auto [found, fresh] = files_.try_emplace(handle);
    if (fresh && driver.export_handle(handle, &found->second.file) != CUDA_SUCCESS) {
      files_.erase(found);
      return -1;
    }
    if (fresh) ::fcntl(found->second.file, F_SETFD, FD_CLOEXEC);  // a program started meanwhile would hold the memory
    ++found->second.users;
    return found->second.file;
  }
  void give_back(CUmemGenericAllocationHandle handle) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(handle);
    if (--found->second.users > 0) return;
    ::close(found->second.file);
    files_.erase(found);
  }

 private:
  struct File {
    int file = -1;
    std::size_t users = 0;
  };
  std::mutex mutex_;
  std::map<CUmemGenericAllocationHandle, File> files_;
};

Files& files() {
  static auto* const all = new Files();
  return *all;
}

const char* why_not_exported() noexcept {
  const int probe = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool none_left = probe < 0 && (errno == EMFILE || errno == ENFILE);
  if (probe >= 0) ::close(probe);
  return none_left ? "no file descriptor is left, and each handle of its memory needs one (raise ulimit -n)"
                   : "its memory was created before PyTorch was there, or the device cannot share memory";
}

// A descriptor that is closed in the end.
class OwnFile {
 public:
  explicit OwnFile(long file) : file_(static_cast<int>(file)) {}
  ~OwnFile() {
    if (file_ >= 0) ::close(file_);
  }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  [[nodiscard]] int get() const { return file_; }

 private:
  int file_;
};

// What another process offered, mapped here piece by piece.
struct Opened {
  int device = 0;
  CUcontext context = nullptr;
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> pieces;  // mapped, one behind the other
};

// Unmaps it. What the driver refuses to unmap stays, with its addresses.
void undo(serve::Driver& driver, const Opened& opened) noexcept {
  CUdeviceptr at = opened.base;
  bool all = true;
  for (const std::uint64_t bytes : opened.pieces) {
    all = driver.unmap(at, bytes) == CUDA_SUCCESS && all;
    at += bytes;
  }
  if (all && opened.base != 0) driver.unreserve(opened.base, opened.bytes);
}

class AllOpened {
 public:
  // False: the driver gives no access to it.
  bool add(serve::Driver& driver, const Opened& opened) {
    const std::lock_guard lock(mutex_);
    if (!give_access(driver, opened)) return false;
    opened_.emplace(opened.base, opened);
    return true;
  }
  void add_peer(serve::Driver& driver, int device, int peer) {
    const std::lock_guard lock(mutex_);
    if (!peers_[device].insert(peer).second) return;
    for (const auto& [base, opened] : opened_) {
      if (opened.device == device) give_access(driver, opened);
    }
  }
  void close(serve::Driver& driver, CUdeviceptr base) {
    const std::lock_guard lock(mutex_);
    const auto found = opened_.find(base);
    if (found == opened_.end()) return;
    closing_.push_back(std::move(found->second));
    opened_.erase(found);
    finish_locked(driver);
  }
  void finish(serve::Driver& driver) {
    const std::lock_guard lock(mutex_);
    finish_locked(driver);
  }

 private:
  bool give_access(serve::Driver& driver, const Opened& opened) {
    std::vector<int> devices{opened.device};
    const std::set<int>& peers = peers_[opened.device];
    devices.insert(devices.end(), peers.begin(), peers.end());
    return driver.set_access(opened.base, opened.bytes, devices) == CUDA_SUCCESS;
  }
  void finish_locked(serve::Driver& driver) {
    if (Session::captures().may_be_any()) return;
    for (; !closing_.empty(); closing_.pop_back()) {
      const serve::ContextScope scope(driver, closing_.back().context);
      if (!scope.ok() || driver.synchronize_context() != CUDA_SUCCESS) continue;  // it goes with the process
      undo(driver, closing_.back());
    }
  }

  std::mutex mutex_;
  std::map<CUdeviceptr, Opened> opened_;
  std::vector<Opened> closing_;
  std::map<int, std::set<int>> peers_;  // of each device, those that may touch its memory
};

AllOpened& all_opened() {
  static auto* const all = new AllOpened();
  return *all;
}

// The pieces that a text tells of; empty when it is damaged.
std::vector<Piece> read_pieces(std::string_view text, Header* header) {
  if (text.size() < sizeof *header) return {};
  std::memcpy(header, text.data(), sizeof *header);
  const std::size_t rest = text.size() - sizeof *header;
  if (header->magic != kMagic || rest % sizeof(Piece) != 0 || header->pieces != rest / sizeof(Piece)) return {};
  std::vector<Piece> pieces(rest / sizeof(Piece));
  if (rest > 0) std::memcpy(pieces.data(), text.data() + sizeof *header, rest);
  return pieces;
}

bool map_piece(serve::Driver& driver, int file, CUdeviceptr at, std::uint64_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  if (driver.import_handle(file, &handle) != CUDA_SUCCESS) return false;
  const CUresult mapped = driver.map(at, bytes, handle);
  driver.release(handle);  // the mapping holds the memory
  return mapped == CUDA_SUCCESS;
}

// False where something stood in the way; `opened` then has what was done.
bool open_pieces(serve::Driver& driver, int process, const std::vector<Piece>& pieces, Opened* opened,
                 const char** why) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 48;
  for (const Piece& piece : pieces) {
    if (piece.bytes > kMost - opened->bytes) return *why = "the handle is damaged", false;
    opened->bytes += piece.bytes;
  }
  const OwnFile other(::syscall(kPidfdOpen, process, 0));
  if (other.get() < 0) {
    return *why =
               "the process that shares it is gone or cannot be named from here (pidfd_open failed; do both run in one "
               "container, on Linux 5.6 or newer?)",
           false;
  }
  opened->pieces.reserve(pieces.size());
  if (driver.reserve(&opened->base, opened->bytes) != CUDA_SUCCESS) return *why = "no addresses are left", false;
  CUdeviceptr at = opened->base;
  for (const Piece& piece : pieces) {
    const OwnFile file(::syscall(kPidfdGetfd, other.get(), static_cast<int>(piece.file), 0));
    if (file.get() < 0) {
      return *why =
                 "the other process's file descriptors may not be taken (pidfd_getfd failed; both must run as one "
                 "user, "
                 "and kernel.yama.ptrace_scope or the container's seccomp profile must allow it)",
             false;
    }
    if (!map_piece(driver, file.get(), at, piece.bytes)) return *why = "the driver refused to map it", false;
    opened->pieces.push_back(piece.bytes);
    at += piece.bytes;
  }
  return true;
}

}  // namespace

Offer* Offer::make(serve::Heap& heap, serve::Driver& driver, CUdeviceptr address, const char** why) noexcept {
  try {
    const std::optional<serve::Heap::Backing> backing = heap.backing(address);
    if (!backing) return *why = "no tensor begins there", nullptr;
    std::unique_ptr<Offer> offer(new Offer());
    offer->offset_ = backing->offset;
    offer->handles_.reserve(backing->handles.size());
    Header header;
    header.magic = kMagic;
    header.process = ::getpid();
    header.pieces = backing->handles.size();
    offer->text_.assign(reinterpret_cast<const char*>(&header), sizeof header);
    for (const MappedHandle& handle : backing->handles) {
      const Piece piece{files().take(driver, handle.id), handle.bytes};
      if (piece.file < 0) return *why = why_not_exported(), nullptr;
      offer->handles_.push_back(handle.id);
      offer->text_.append(reinterpret_cast<const char*>(&piece), sizeof piece);
    }
    return offer.release();
  } catch (const std::exception&) {
    return *why = "the host is out of memory", nullptr;
  }
}

Offer::~Offer() {
  for (const CUmemGenericAllocationHandle handle : handles_) files().give_back(handle);
}

bool Offer::is_text(std::string_view text) noexcept {
  return text.size() >= kMagic.size() && std::memcmp(text.data(), kMagic.data(), kMagicWithoutVersion) == 0;
}

CUdeviceptr open_text(serve::Driver& driver, int device, std::string_view text, const char** why) noexcept {
  try {
    all_opened().finish(driver);
    Header header;
    const std::vector<Piece> pieces = read_pieces(text, &header);
    if (pieces.empty()) return *why = "the handle is damaged, or of another version of stalloc", 0;
    Opened opened;
    opened.device = device;
    if (driver.current_context(&opened.context) != CUDA_SUCCESS || opened.context == nullptr) {
      return *why = "the thread has no CUDA context", 0;
    }
    if (open_pieces(driver, header.process, pieces, &opened, why)) {
      if (all_opened().add(driver, opened)) return opened.base;
      *why = "the driver gave no access to it";
    }
    undo(driver, opened);
    return 0;
  } catch (const std::exception&) {
    return *why = "the host is out of memory", 0;
  }
}

void give_peer_opened(serve::Driver& driver, int device, int peer) noexcept {
  try {
    all_opened().add_peer(driver, device, peer);
  } catch (const std::exception&) {
    // The host is out of memory: its copies fail.
  }
}

void close_opened(serve::Driver& driver, CUdeviceptr base) noexcept {
  try {
    all_opened().close(driver, base);
  } catch (const std::exception&) {
    // It stays mapped until the process ends.
  }
}

}  // namespace stalloc::torch
