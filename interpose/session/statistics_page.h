// SPDX-License-Identifier: Apache-2.0
// A small file in which other processes of the same user can read this process's figures while it runs: `stalloc top`,
// and the report at the end of `stalloc run`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "interpose/serve/heap/published_figures.h"

namespace stalloc {

// The beginning of the file, in this machine's byte order. Texts end with a zero byte and are truncated if they are too
// long. It is part of a file format (docs/formats.md, "Statistics page").
struct StatisticsHeader {
  char magic[8];  // "stalloc" and a zero byte, written last
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint32_t device_bytes;  // of one device's figures, which follow one another
  std::uint32_t devices;
  // The process: its id, its start in clock ticks since the boot, and the namespace and boot that these refer to.
  std::uint64_t process;
  std::uint64_t process_start;
  std::uint64_t process_namespace;  // of ids: the inode of /proc/self/ns/pid; 0: unknown
  char boot[40];                    // /proc/sys/kernel/random/boot_id
  std::int64_t rank;                // -1: no launcher
  std::uint64_t began;              // nanoseconds since 1970
  std::uint64_t ended;              // 0: still running, or killed
  char mode[16];                    // of STALLOC_MODE
  char host[64];
  char command[832];
};
static_assert(sizeof(StatisticsHeader) == 1024);

// The page of this process. Thread-safe, but `finish` must be called only once. The figures of a device are written by
// its heap, under the heap's lock.
class StatisticsPage {
 public:
  static constexpr std::size_t kDevices = 64;
  // If the folder has a file of this name, pages are kept when their processes end.
  static constexpr const char* kKeep = "keep";

  // Creates this process's file in `folder`, which is created (for this user only) if it does not exist. Null on
  // failure; `why` then gives the reason in one line: the folder belongs to another user or others may write to it,
  // there is no space, or a limit on the size of files is exceeded. No descriptor stays open, and the memory stays
  // mapped after the page is destroyed. May throw std::bad_alloc.
  static std::unique_ptr<StatisticsPage> create(std::string_view folder, std::string_view mode, std::string* why);

  // The place for the figures of a device. Pre: 0 <= device < kDevices. Never throws; valid until the process ends.
  serve::PublishedFigures* device(int device) noexcept;

  // The process ends: marks this in the file, and removes the file unless it must be kept. Call it once.
  void finish() noexcept;

 private:
  struct Content;
  StatisticsPage(Content* content, std::string folder, std::string path);

  Content* content_;  // mapped, never unmapped
  std::string folder_;
  std::string path_;
};

}  // namespace stalloc
