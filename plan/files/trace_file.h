// SPDX-License-Identifier: Apache-2.0
// Reading and writing traces: files of size-prefixed chunks (schemas/trace.fbs).
//
// The recorder encodes one chunk at a time and appends it; the planner reads the whole file. A killed process leaves
// whole chunks and perhaps an incomplete one at the end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/expected.h"
#include "trace_generated.h"

namespace stalloc::trace {

using plan::Expected;

inline constexpr std::uint16_t kTraceVersionMajor = 1;
inline constexpr std::uint16_t kTraceVersionMinor = 2;

// Fields as in schemas/trace.fbs.
using Event = tracefb::Event;
using Frame = tracefb::Frame;
using EventKind = tracefb::EventKind;

// A reader accepts so many tables in one chunk: each device, module and stack is one, and two are for the chunk itself.
inline constexpr std::uint32_t kMostChunkTables = 1'000'000;

struct Process {
  std::string writer;
  std::uint32_t pid = 0;
  std::string rank;
  std::string host;
  std::string command;
  std::uint64_t start_unix_ns = 0;
};

struct Device {
  std::uint32_t ordinal = 0;
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t granularity = 0;
};

struct Module {
  std::uint32_t id = 0;
  std::string path;
  std::string function = {};  // of Python code; empty for a library
};

struct Stack {
  std::uint32_t id = 0;
  std::vector<Frame> frames;  // innermost first
};

// A recorder writes a chunk at the latest when its new modules and stacks have so many bytes, as these functions count
// them. So it never has more tables than a reader accepts, and never 2 GiB, however many events it may have.
inline constexpr std::uint64_t kFullChunkBytes = std::uint64_t{32} << 20;
inline constexpr std::uint64_t kBytesPerTable = 64;
static_assert(kFullChunkBytes / kBytesPerTable < kMostChunkTables * 3 / 4);
inline std::uint64_t bytes_in_chunk(const Module& module) {
  return kBytesPerTable + module.path.size() + module.function.size();
}
inline std::uint64_t bytes_in_chunk(const Stack& stack) { return kBytesPerTable + stack.frames.size() * sizeof(Frame); }

// What one chunk holds. The spans point into the caller's memory.
struct ChunkView {
  std::uint32_t sequence = 0;        // 0, 1, 2, ...
  const Process* process = nullptr;  // in chunk 0, else null
  std::span<const Device> devices;   // those first seen since the previous chunk; the same for modules and stacks
  std::span<const Module> modules;
  std::span<const Stack> stacks;
  std::span<const Event> events;
  bool last = false;           // the closing chunk: the process ends in order, or ...
  bool limit_reached = false;  // ... with `last`: the file has reached its largest size
};

// Encodes one chunk as it is in a file, with its size prefix. Chunks appended in the order of their sequence numbers
// make up a trace. Allocates with operator new, which may throw. A chunk must stay below 2 GiB and within
// kMostChunkTables.
std::vector<std::uint8_t> encode_chunk(const ChunkView& chunk);

// A whole trace.
struct Trace {
  Process process;
  std::vector<Device> devices;
  std::vector<Module> modules;
  std::vector<Stack> stacks;
  std::vector<Event> events;
  std::uint64_t chunks = 0;           // read
  bool closed = false;                // the closing chunk was seen; else the process was killed or still runs
  bool limit_reached = false;         // the process continued after the closing chunk: the file had its largest size
  std::uint64_t left_out_bytes = 0;   // after the last whole chunk (see ReadOptions)
  std::string damage;                 // what is wrong with those bytes, in one line; empty: there are none
  std::uint64_t source_checksum = 0;  // of all bytes of the file
};

struct ReadOptions {
  // A file that ends inside a chunk, or holds anything that is not the next chunk, is an error, whose text says how
  // many whole chunks come before. With this option those chunks are read, if there are any, and the rest is left out.
  bool take_whole_chunks = false;
};

// True if the bytes begin like a trace; the rest is not checked.
bool is_trace(std::span<const std::uint8_t> bytes);

// Verifies and decodes a trace: every buffer, identifier, major version, checksum and sequence number; since
// version 1.1 a chunk is refused whichever of its bytes has changed. Pure; touches no file; allocates O(size of the
// input). The error is one line.
Expected<Trace> decode_trace(std::span<const std::uint8_t> bytes, const ReadOptions& options = {});

// The same for a file; the error names the path.
Expected<Trace> read_trace(const std::string& path, const ReadOptions& options = {});

}  // namespace stalloc::trace
