// SPDX-License-Identifier: Apache-2.0
#include "plan/files/trace_checksum.h"
#include "plan/files/trace_file.h"

namespace stalloc::trace {

std::vector<std::uint8_t> encode_chunk(const ChunkView& chunk) {
  flatbuffers::FlatBufferBuilder builder(chunk.events.size_bytes() + 4096);
  flatbuffers::Offset<tracefb::Process> process;
  if (chunk.process != nullptr) {
    const Process& from = *chunk.process;
    const auto writer = builder.CreateString(from.writer);
    const auto rank = builder.CreateString(from.rank);
    const auto host = builder.CreateString(from.host);
    const auto command = builder.CreateString(from.command);
    process = tracefb::CreateProcess(builder, writer, from.pid, rank, host, command, from.start_unix_ns);
  }
  std::vector<flatbuffers::Offset<tracefb::Device>> devices;
  for (const Device& device : chunk.devices) {
    const auto name = builder.CreateString(device.name);
    devices.push_back(tracefb::CreateDevice(builder, device.ordinal, name, device.total_bytes, device.granularity));
  }
  std::vector<flatbuffers::Offset<tracefb::Module>> modules;
  for (const Module& module : chunk.modules) {
    const auto path = builder.CreateString(module.path);
    const auto function = module.function.empty() ? 0 : builder.CreateString(module.function);
    modules.push_back(tracefb::CreateModule(builder, module.id, path, function));
  }
  std::vector<flatbuffers::Offset<tracefb::Stack>> stacks;
  for (const Stack& stack : chunk.stacks) {
    const auto frames = builder.CreateVectorOfStructs(stack.frames.data(), stack.frames.size());
    stacks.push_back(tracefb::CreateStack(builder, stack.id, frames));
  }
  const auto devices_at = builder.CreateVector(devices);
  const auto modules_at = builder.CreateVector(modules);
  const auto stacks_at = builder.CreateVector(stacks);
  const auto events_at = builder.CreateVectorOfStructs(chunk.events.data(), chunk.events.size());
  constexpr std::uint64_t kToBeStored = 1;  // anything but the default, which is left out
  const auto root =
      tracefb::CreateChunk(builder, kTraceVersionMajor, kTraceVersionMinor, chunk.sequence, checksum_of(chunk), process,
                           devices_at, modules_at, stacks_at, events_at, chunk.last, chunk.limit_reached, kToBeStored);
  tracefb::FinishSizePrefixedChunkBuffer(builder, root);
  std::vector<std::uint8_t> bytes(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
  store_byte_checksum(bytes, kByteChecksumField);
  return bytes;
}

}  // namespace stalloc::trace
