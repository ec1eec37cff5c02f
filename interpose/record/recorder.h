// SPDX-License-Identifier: Apache-2.0
// Trace mode: turns the program's calls into events, and writes the events as chunks of the trace file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interpose/base/options.h"
#include "interpose/base/stream_key.h"
#include "interpose/record/interning.h"
#include "interpose/record/trace_output.h"
#include "plan/files/trace_file.h"

namespace stalloc::record {

// One call, as a hook saw it. Sizes are in bytes.
struct TracedCall {
  trace::EventKind kind{};
  bool captured = false;
  bool failed = false;
  int device = 0;
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  StreamKey stream;
  const void* caller = nullptr;  // return address in the program
};

// The most that a recorder keeps of chunks that it could not write; a chunk that is not yet full is not counted.
inline constexpr std::size_t kMostUnwrittenBytes = std::size_t{64} << 20;

// Records the calls of one process in a trace file. The first write creates the file. Only the constructor throws.
class Recorder {
 public:
  // `describe` returns the name, size and granularity of a device; it is called once for each device. Throws
  // std::bad_alloc.
  Recorder(const Options& options, trace::Device (*describe)(int device));

  // Records a call. Thread-safe; never throws; keeps errno. Chunks that cannot be written now, for want of a descriptor
  // or of room on the disk, are kept in memory and written with the next one. Recording stops with one warning when
  // more than kMostUnwrittenBytes would have to be kept, when any other failure occurs, and when the file reaches its
  // largest size; the trace up to there can be planned. Record allocations after the original function has returned,
  // and frees before it is called, so that no address is live twice in the trace.
  void record(const TracedCall& call) noexcept;

  // Call this before the stream is destroyed, since a new stream may get its handle. Thread-safe.
  void stream_destroyed(CUstream stream) noexcept;

  // At exit, before the last calls are recorded: from now on `record`, `stream_destroyed` and `close` together wait no
  // longer than a second for the recorder's lock, which another thread may never release. If a call had to be left out,
  // recording stops, and the trace stays as it is, without a closing chunk. Thread-safe.
  void limit_waits() noexcept;

  // Writes the events in memory and the closing chunk. Nothing is recorded afterwards. If another thread keeps the
  // recorder's lock for a second, the trace stays as it is, without a closing chunk. Does nothing in a child that has
  // its parent's recorder: the file is the parent's. Thread-safe.
  void close() noexcept;

 private:
  struct StreamHash {
    std::size_t operator()(const StreamKey& key) const noexcept {
      return std::hash<const void*>{}(key.handle) * 31 + std::hash<std::uint64_t>{}(key.thread);
    }
  };

  void append_event(const TracedCall& call);
  bool wait_for(std::unique_lock<std::mutex>& lock) const;
  void note_device(int device);
  void write_chunk(bool last);
  void add_unwritten(std::vector<std::uint8_t> chunk);
  bool write(bool last);  // false: recording has stopped
  void log_beginning() const;
  [[nodiscard]] bool is_copy() const noexcept;
  [[nodiscard]] bool fits(std::size_t bytes, bool last) const;
  void close_full_trace();
  void stop(std::string_view why) noexcept;
  std::uint32_t stream_ordinal(const StreamKey& stream);

  const bool stacks_;
  const std::size_t stack_depth_;
  const std::size_t chunk_events_;
  const std::uint64_t flush_ns_;
  const std::uint64_t limit_;  // bytes of the file; 0: none
  trace::Device (*const describe_)(int device);
  trace::Process process_;  // not changed after the constructor

  std::atomic<bool> stopped_{false};
  std::atomic<std::uint64_t> waits_until_ns_{0};  // limit_waits; 0: it was not called
  std::mutex mutex_;                              // guards all members below
  TraceOutput output_;
  Interning interning_;
  std::unordered_map<StreamKey, std::uint32_t, StreamHash> streams_;
  std::uint32_t next_stream_ = 1;  // 0 is the legacy default stream
  std::vector<int> known_devices_;
  std::vector<trace::Device> new_devices_;
  std::vector<trace::Event> events_;
  std::vector<std::uint8_t> unwritten_;  // whole chunks
  std::uint64_t start_ns_;
  std::uint64_t last_write_ns_;
  std::uint64_t total_events_ = 0;  // in chunks
  std::uint32_t sequence_ = 0;
};

}  // namespace stalloc::record
