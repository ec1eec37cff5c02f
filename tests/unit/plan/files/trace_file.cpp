// SPDX-License-Identifier: Apache-2.0
// Trace files: chunks are read back; damage is named; a killed writer loses no whole chunk.
#include "plan/files/trace_file.h"

#include "catch.h"
#include "samples.h"

using namespace stalloc;
using Bytes = std::vector<std::uint8_t>;

namespace {

trace::Trace small_trace() {
  test::TraceBuilder calls;
  const auto first = calls.alloc(1000);
  calls.stream = 2;
  const auto second = calls.alloc_sync(5000);
  calls.free(first);
  calls.free_sync(second);
  calls.share(second, 8);
  trace::Trace trace = calls.trace();
  trace.modules = {{1, "/usr/lib/libnccl.so.2"}, {2, "/opt/python"}, {3, "train.py", "größe"}};
  trace.stacks = {{1, {trace::Frame(0x10, 1), trace::Frame(0x20, 2), trace::Frame(7, 3)}}, {2, {}}};
  return trace;
}

Bytes first(const Bytes& bytes, std::size_t size) {
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)};
}

std::size_t chunk_size(const Bytes& bytes, std::size_t at) {
  return std::size_t{4} + bytes[at] + (std::size_t{bytes[at + 1]} << 8) + (std::size_t{bytes[at + 2]} << 16);
}

std::string readable(std::size_t chunks) {
  return " (" + std::to_string(chunks) + " whole chunks before it are readable)";
}

}  // namespace

TEST_CASE("a trace survives encoding and decoding, in one chunk or many") {
  const trace::Trace trace = small_trace();
  for (const std::size_t events_per_chunk : {1, 2, 100}) {
    const auto decoded = trace::decode_trace(test::encode_trace(trace, events_per_chunk));
    REQUIRE(decoded.error.empty());
    CHECK(test::same_content(decoded.value, trace));
    CHECK(decoded.value.closed);
    CHECK(decoded.value.damage.empty());
    CHECK(decoded.value.left_out_bytes == 0);
    CHECK(decoded.value.chunks == (trace.events.size() + events_per_chunk - 1) / events_per_chunk);
  }
}

TEST_CASE("a chunk may have a million tables and no more") {
  const std::vector<trace::Stack> stacks(trace::kMostChunkTables);
  trace::ChunkView chunk;
  chunk.last = true;
  chunk.stacks = std::span(stacks).subspan(1);  // the chunk is a table, too
  CHECK(trace::decode_trace(trace::encode_chunk(chunk)).error.empty());
  chunk.stacks = stacks;
  CHECK(trace::decode_trace(trace::encode_chunk(chunk)).error == "chunk 0 is corrupt" + readable(0));
}

TEST_CASE("a chunk with nothing in it is a chunk") {
  trace::Trace trace;
  trace.closed = true;
  const auto decoded = trace::decode_trace(test::encode_trace(trace, 10));
  CHECK(decoded.error.empty());
  CHECK(decoded.value.chunks == 1);
  CHECK(decoded.value.events.empty());
}

TEST_CASE("a killed process leaves whole chunks, and the reader says so") {
  trace::Trace trace = small_trace();
  trace.closed = false;
  const auto decoded = trace::decode_trace(test::encode_trace(trace, 2));
  REQUIRE(decoded.error.empty());
  CHECK_FALSE(decoded.value.closed);
  CHECK(decoded.value.events.size() == trace.events.size());
}

TEST_CASE("a trace cut short anywhere is an error that counts its whole chunks") {
  const Bytes bytes = test::encode_trace(small_trace(), 2);
  std::size_t whole = 0;
  std::size_t next = chunk_size(bytes, 0);
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    if (size == next) {
      ++whole;
      next += chunk_size(bytes, size);
      CHECK(trace::decode_trace(first(bytes, size)).ok());
      continue;
    }
    const auto decoded = trace::decode_trace(first(bytes, size));
    REQUIRE_FALSE(decoded.ok());
    if (size < 12) {
      CHECK(decoded.error == "not a trace");
      continue;
    }
    const std::string count = std::to_string(whole);
    CHECK(decoded.error == "the file stops inside chunk " + count + readable(whole));
    const auto taken = trace::decode_trace(first(bytes, size), {.take_whole_chunks = true});
    CHECK(taken.ok() == (whole > 0));
    if (taken.ok()) {
      CHECK(taken.value.damage == "the file stops inside chunk " + count);
      CHECK(taken.value.left_out_bytes > 0);
      CHECK(taken.value.chunks == whole);
      CHECK(taken.value.events.size() == 2 * whole);
    }
  }
  CHECK(whole == 2);
}

TEST_CASE("a trace with any byte changed is refused") {
  trace::Trace trace = small_trace();
  trace.limit_reached = true;
  const Bytes bytes = test::encode_trace(trace, 3);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const std::uint8_t flip : {0x01, 0x80, 0xff}) {
      Bytes changed = bytes;
      changed[at] = static_cast<std::uint8_t>(changed[at] ^ flip);
      const auto decoded = trace::decode_trace(changed);
      if (decoded.ok()) FAIL_CHECK("byte " << at << " was changed and nobody noticed");
      CHECK(decoded.error.find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("of a trace with any byte changed, the whole chunks before the change can be taken") {
  const trace::Trace trace = small_trace();
  const Bytes bytes = test::encode_trace(trace, 2);
  std::size_t whole = 0;
  std::size_t begin = 0;  // of the chunk that holds the byte
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (at == begin + chunk_size(bytes, begin)) {
      ++whole;
      begin = at;
    }
    Bytes changed = bytes;
    changed[at] ^= 0x80;
    const auto taken = trace::decode_trace(changed, {.take_whole_chunks = true});
    REQUIRE(taken.ok() == (whole > 0));
    if (!taken.ok()) continue;
    CHECK_FALSE(taken.value.damage.empty());
    CHECK(taken.value.left_out_bytes == bytes.size() - begin);
    CHECK(taken.value.chunks == whole);
    CHECK(taken.value.events.size() == 2 * whole);  // nothing of the damaged chunk
    CHECK_FALSE(taken.value.closed);
  }
  CHECK(whole == 2);
}

TEST_CASE("of a trace with anything behind its end, the whole can be taken") {
  const trace::Trace trace = small_trace();
  Bytes trailing = test::encode_trace(trace, 2);
  trailing.insert(trailing.end(), 32, 0);
  const auto taken = trace::decode_trace(trailing, {.take_whole_chunks = true});
  REQUIRE(taken.error.empty());
  CHECK(test::same_content(taken.value, trace));
  CHECK(taken.value.damage == "chunk 3 is not of a trace");
  CHECK(taken.value.left_out_bytes == 32);
}

TEST_CASE("a trace of version 1.0 is read") {
  const auto trace = trace::read_trace(TEST_DATA "/trace-1.0.fb");
  REQUIRE(trace.error.empty());
  CHECK(trace.value.events.size() == 20);
  CHECK(trace.value.modules.front().path == "/usr/lib/libnccl.so.2");
}

TEST_CASE("a trace that ended at its largest size says so") {
  trace::Trace trace = small_trace();
  trace.limit_reached = true;
  const auto decoded = trace::decode_trace(test::encode_trace(trace, 3));
  REQUIRE(decoded.error.empty());
  CHECK(decoded.value.closed);
  CHECK(decoded.value.limit_reached);
}

TEST_CASE("chunks out of order, doubled or behind the end are refused") {
  const Bytes bytes = test::encode_trace(small_trace(), 2);
  const std::size_t one = chunk_size(bytes, 0);
  const std::size_t two = one + chunk_size(bytes, one);
  Bytes swapped(bytes.begin() + static_cast<std::ptrdiff_t>(one), bytes.begin() + static_cast<std::ptrdiff_t>(two));
  CHECK(trace::decode_trace(swapped).error == "chunk 0 has sequence number 1" + readable(0));
  Bytes doubled = bytes;
  doubled.insert(doubled.end(), bytes.begin(), bytes.end());
  CHECK(trace::decode_trace(doubled).error == "chunk 3 has sequence number 0" + readable(3));
  trace::ChunkView late;
  late.sequence = 3;
  const Bytes chunk = trace::encode_chunk(late);
  Bytes longer = bytes;
  longer.insert(longer.end(), chunk.begin(), chunk.end());
  CHECK(trace::decode_trace(longer).error == "chunk 3 follows the closing chunk" + readable(3));
}

TEST_CASE("absurd sizes and foreign files are refused at no cost") {
  CHECK(trace::decode_trace(Bytes{}).error == "not a trace: the file is empty");
  CHECK(trace::decode_trace(Bytes(64, 'x')).error == "not a trace");
  Bytes huge = test::encode_trace(small_trace(), 100);
  huge[0] = huge[1] = huge[2] = huge[3] = 0xff;
  CHECK(trace::decode_trace(huge).error == "the file stops inside chunk 0" + readable(0));
  Bytes tiny = test::encode_trace(small_trace(), 100);
  tiny[0] = tiny[1] = tiny[2] = tiny[3] = 0;
  CHECK(trace::decode_trace(tiny).error == "chunk 0 is not of a trace" + readable(0));
  Bytes trailing = test::encode_trace(small_trace(), 100);
  trailing.insert(trailing.end(), 32, 0);
  CHECK(trace::decode_trace(trailing).error == "chunk 1 is not of a trace" + readable(1));
}
