// SPDX-License-Identifier: Apache-2.0
// The checksums of a chunk, shared by the encoder and the decoder.
#pragma once

#include "plan/files/byte_checksum.h"
#include "plan/files/checksum.h"
#include "plan/files/trace_file.h"

namespace stalloc::trace {

// The field after the size prefix. Covers every byte of a chunk since this minor version.
inline constexpr RootField kByteChecksumField{sizeof(flatbuffers::uoffset_t), tracefb::Chunk::VT_BYTE_CHECKSUM};
inline constexpr std::uint16_t kByteChecksumSince = 1;

// Covers the fields of version 1.0, except for the version and the checksum itself, in the order of the schema.
inline std::uint64_t checksum_of(const ChunkView& chunk) {
  Checksum sum;
  const auto add_number = [&sum](std::uint64_t number) { sum.add(&number, sizeof number); };
  const auto add_text = [&sum](const std::string& text) { sum.add(text.data(), text.size()); };
  add_number(chunk.sequence);
  if (chunk.process != nullptr) {
    add_text(chunk.process->writer);
    add_number(chunk.process->pid);
    add_text(chunk.process->rank);
    add_text(chunk.process->host);
    add_text(chunk.process->command);
    add_number(chunk.process->start_unix_ns);
  }
  for (const Device& device : chunk.devices) {
    add_number(device.ordinal);
    add_text(device.name);
    add_number(device.total_bytes);
    add_number(device.granularity);
  }
  for (const Module& module : chunk.modules) {
    add_number(module.id);
    add_text(module.path);
  }
  for (const Stack& stack : chunk.stacks) {
    add_number(stack.id);
    sum.add(stack.frames.data(), stack.frames.size() * sizeof(Frame));
  }
  sum.add(chunk.events.data(), chunk.events.size_bytes());
  add_number(chunk.last ? 1 : 0);
  return sum.value();
}

}  // namespace stalloc::trace
