// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "plan/files/file_io.h"
#include "plan/files/trace_checksum.h"
#include "plan/files/trace_file.h"

namespace stalloc::trace {
namespace {

using Bytes = std::span<const std::uint8_t>;
using MutableBytes = std::span<std::uint8_t>;
constexpr std::size_t kPrefix = sizeof(flatbuffers::uoffset_t);
constexpr std::size_t kSmallestChunk = kPrefix + 8;  // prefix, root offset, identifier

std::string text_of(const flatbuffers::String* text) { return text == nullptr ? std::string() : text->str(); }

// Vectors and strings of a hostile buffer may share their bytes; the budget keeps what is decoded within its size.
class Budget {
 public:
  explicit Budget(std::size_t bytes) : left_(bytes) {}
  bool take(std::size_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  bool take(const flatbuffers::String* text) { return text == nullptr || take(text->size()); }

 private:
  std::size_t left_;
};

Process decode_process(const tracefb::Process& from) {
  return {text_of(from.writer()),  from.pid(),          text_of(from.rank()), text_of(from.host()),
          text_of(from.command()), from.start_unix_ns()};
}

// Where the vectors of a trace ended before a chunk was appended.
struct Marks {
  std::size_t devices, modules, stacks, events;
};

Marks marks_of(const Trace& trace) {
  return {trace.devices.size(), trace.modules.size(), trace.stacks.size(), trace.events.size()};
}

void cut_back(Trace& trace, const Marks& marks) {
  trace.devices.resize(marks.devices);
  trace.modules.resize(marks.modules);
  trace.stacks.resize(marks.stacks);
  trace.events.resize(marks.events);
}

// The verifier does not look at the alignment of a vector's elements, so they are copied as bytes.
template <class Struct>
void append_structs(const flatbuffers::Vector<const Struct*>& from, std::vector<Struct>& to) {
  if (from.size() == 0) return;
  const std::size_t before = to.size();
  to.resize(before + from.size());
  std::memcpy(static_cast<void*>(&to[before]), from.Data(), from.size() * sizeof(Struct));
}

bool append_content(const tracefb::Chunk& chunk, Trace& trace, Budget& budget) {
  if (chunk.devices() != nullptr) {
    for (const tracefb::Device* device : *chunk.devices()) {
      if (!budget.take(device->name())) return false;
      trace.devices.push_back(
          {device->ordinal(), text_of(device->name()), device->total_bytes(), device->granularity()});
    }
  }
  if (chunk.modules() != nullptr) {
    for (const tracefb::Module* module : *chunk.modules()) {
      if (!budget.take(module->path()) || !budget.take(module->function())) return false;
      trace.modules.push_back({module->id(), text_of(module->path()), text_of(module->function())});
    }
  }
  if (chunk.stacks() != nullptr) {
    for (const tracefb::Stack* stack : *chunk.stacks()) {
      Stack& copy = trace.stacks.emplace_back();
      copy.id = stack->id();
      if (stack->frames() == nullptr) continue;
      if (!budget.take(std::size_t{stack->frames()->size()} * sizeof(Frame))) return false;
      append_structs(*stack->frames(), copy.frames);
    }
  }
  if (chunk.events() != nullptr) append_structs(*chunk.events(), trace.events);
  return true;
}

bool checksum_matches(const tracefb::Chunk& chunk, const Trace& trace, const Marks& marks) {
  ChunkView view;
  view.sequence = chunk.sequence();
  view.process = chunk.process() == nullptr ? nullptr : &trace.process;
  view.devices = std::span(trace.devices).subspan(marks.devices);
  view.modules = std::span(trace.modules).subspan(marks.modules);
  view.stacks = std::span(trace.stacks).subspan(marks.stacks);
  view.events = std::span(trace.events).subspan(marks.events);
  view.last = chunk.last();
  return checksum_of(view) == chunk.checksum();
}

// Appends one chunk to `trace`. `bytes` is the whole chunk, prefix included, aligned as a 64-bit word. Returns what is
// wrong with it; a part of it may then have been appended.
std::string append_chunk(MutableBytes bytes, Trace& trace) {
  if (std::string other = find_other_version(bytes, kPrefix, "is", kTraceVersionMajor); !other.empty()) return other;
  constexpr flatbuffers::uoffset_t kDepth = 64;
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), kDepth, kMostChunkTables);
  if (!tracefb::VerifySizePrefixedChunkBuffer(verifier)) return "is corrupt";
  const tracefb::Chunk& chunk = *tracefb::GetSizePrefixedChunk(bytes.data());
  if (chunk.version_major() != kTraceVersionMajor) return "is corrupt: it has no version";
  if (chunk.sequence() != trace.chunks) return "has sequence number " + std::to_string(chunk.sequence());
  if (trace.closed) return "follows the closing chunk";
  const Marks marks = marks_of(trace);
  if (chunk.process() != nullptr) {
    if (trace.chunks > 0) return "describes the process again";
    trace.process = decode_process(*chunk.process());
  }
  Budget budget(bytes.size());
  if (!append_content(chunk, trace, budget)) return "is corrupt: more content than bytes";
  const bool sums_bytes = chunk.version_minor() >= kByteChecksumSince || find_root_field(bytes, kByteChecksumField, 8);
  if (!checksum_matches(chunk, trace, marks) || (sums_bytes && !byte_checksum_matches(bytes, kByteChecksumField))) {
    return "is corrupt: the checksum does not match";
  }
  for (std::size_t i = marks.events; i < trace.events.size(); ++i) {
    if (trace.events[i].kind() > EventKind::MAX) return "holds an event of an unknown kind";
  }
  trace.closed = chunk.last();
  trace.limit_reached = chunk.limit_reached();
  ++trace.chunks;
  return {};
}

// Bytes of the chunk at the start of `rest`, prefix included; 0 when there is no room for any.
std::size_t chunk_bytes(Bytes rest) {
  if (rest.size() < kPrefix) return 0;
  return std::size_t{flatbuffers::ReadScalar<flatbuffers::uoffset_t>(rest.data())} + kPrefix;
}

// Appends the chunk at the start of `rest` to `trace`. Returns what is wrong with it; a part of it may then have been
// appended.
std::string append_first_chunk(Bytes rest, Trace& trace) {
  const std::string chunk = "chunk " + std::to_string(trace.chunks);
  const std::size_t size = chunk_bytes(rest);
  if (size == 0 || size > rest.size()) return "the file stops inside " + chunk;
  if (size < kSmallestChunk || !is_trace(rest.first(size))) return chunk + " is not of a trace";
  std::vector<std::uint64_t> aligned(size / sizeof(std::uint64_t) + 1);
  std::memcpy(aligned.data(), rest.data(), size);
  const std::string defect = append_chunk({reinterpret_cast<std::uint8_t*>(aligned.data()), size}, trace);
  return defect.empty() ? "" : chunk + " " + defect;
}

}  // namespace

bool is_trace(Bytes bytes) {
  return bytes.size() >= kSmallestChunk &&
         flatbuffers::BufferHasIdentifier(bytes.data(), tracefb::ChunkIdentifier(), true);
}

Expected<Trace> decode_trace(Bytes bytes, const ReadOptions& options) {
  using Result = Expected<Trace>;
  if (bytes.empty()) return Result::failure("not a trace: the file is empty");
  if (!is_trace(bytes)) return Result::failure("not a trace");
  Result result;
  Trace& trace = result.value;
  Bytes rest = bytes;
  while (!rest.empty() && trace.damage.empty()) {
    const Marks before = marks_of(trace);
    trace.damage = append_first_chunk(rest, trace);
    if (trace.damage.empty()) {
      rest = rest.subspan(chunk_bytes(rest));
    } else {
      cut_back(trace, before);
    }
  }
  if (!trace.damage.empty() && (trace.chunks == 0 || !options.take_whole_chunks)) {
    return Result::failure(trace.damage + " (" + std::to_string(trace.chunks) +
                           " whole chunks before it are readable)");
  }
  trace.left_out_bytes = rest.size();
  Checksum sum;
  sum.add(bytes.data(), bytes.size());
  trace.source_checksum = sum.value();
  return result;
}

Expected<Trace> read_trace(const std::string& path, const ReadOptions& options) {
  const auto bytes = plan::read_file(path);
  if (!bytes.ok()) return Expected<Trace>::failure(bytes.error);
  Expected<Trace> trace = decode_trace(bytes.value, options);
  if (!trace.ok()) trace.error = path + ": " + trace.error;
  return trace;
}

}  // namespace stalloc::trace
