// SPDX-License-Identifier: Apache-2.0
#include "samples.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

namespace stalloc::test {

std::vector<std::uint8_t> encode_trace(const trace::Trace& trace, std::size_t events_per_chunk) {
  std::vector<std::uint8_t> file;
  std::size_t at = 0;
  std::uint32_t sequence = 0;
  do {
    const std::size_t count = std::min(events_per_chunk, trace.events.size() - at);
    trace::ChunkView chunk;
    chunk.sequence = sequence;
    if (sequence == 0) {
      chunk.process = &trace.process;
      chunk.devices = trace.devices;
      chunk.modules = trace.modules;
      chunk.stacks = trace.stacks;
    }
    chunk.events = std::span(trace.events).subspan(at, count);
    at += count;
    ++sequence;
    chunk.last = trace.closed && at == trace.events.size();
    chunk.limit_reached = chunk.last && trace.limit_reached;
    const std::vector<std::uint8_t> bytes = trace::encode_chunk(chunk);
    file.insert(file.end(), bytes.begin(), bytes.end());
  } while (at < trace.events.size());
  return file;
}

bool same_content(const trace::Trace& a, const trace::Trace& b) {
  const auto same_bytes = [](const auto& x, const auto& y) {
    return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof x[0]) == 0);
  };
  const auto process = [](const trace::Process& p) {
    return std::tie(p.writer, p.pid, p.rank, p.host, p.command, p.start_unix_ns);
  };
  const auto equal = [](const auto& x, const auto& y, auto fields) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [&fields](const auto& p, const auto& q) { return fields(p) == fields(q); });
  };
  return process(a.process) == process(b.process) && a.closed == b.closed && a.limit_reached == b.limit_reached &&
         same_bytes(a.events, b.events) &&
         equal(a.devices, b.devices,
               [](const trace::Device& d) { return std::tie(d.ordinal, d.name, d.total_bytes, d.granularity); }) &&
         equal(a.modules, b.modules, [](const trace::Module& m) { return std::tie(m.id, m.path, m.function); }) &&
         std::equal(a.stacks.begin(), a.stacks.end(), b.stacks.begin(), b.stacks.end(),
                    [&same_bytes](const trace::Stack& p, const trace::Stack& q) {
                      return p.id == q.id && same_bytes(p.frames, q.frames);
                    });
}

trace::Trace training_trace(std::uint32_t seed, int steps, int microbatches) {
  std::mt19937 random(seed);
  const auto size = [&random](std::uint64_t most) { return 1 + random() % most; };
  constexpr std::uint64_t kMiB = 1 << 20;
  std::vector<std::uint64_t> layers(4 + random() % 8);
  for (std::uint64_t& layer : layers) layer = size(6 * kMiB);
  const std::uint64_t logits = size(40 * kMiB);

  TraceBuilder calls;
  std::vector<TraceBuilder::Id> parameters;
  for (const std::uint64_t layer : layers) parameters.push_back(calls.alloc(layer));
  std::vector<TraceBuilder::Id> states;
  std::vector<TraceBuilder::Id> held;  // the logits of the microbatch before stay until the next ones are made
  for (int step = 0; step <= steps; ++step) {
    std::vector<TraceBuilder::Id> gradients;
    for (int part = 0; part < microbatches; ++part) {
      std::vector<TraceBuilder::Id> activations;
      for (const std::uint64_t layer : layers) {
        activations.push_back(calls.alloc(2 * layer));
        calls.free(calls.alloc(layer / 3 + 1));
      }
      const TraceBuilder::Id result = calls.alloc(logits);
      for (const TraceBuilder::Id old : held) calls.free(old);
      held = {result};
      for (std::size_t i = layers.size(); i-- > 0;) {
        calls.thread = 1;
        if (part == 0) gradients.push_back(calls.alloc(layers[i]));
        const TraceBuilder::Id scratch = calls.alloc(3 * layers[i]);
        calls.free(activations[i]);
        calls.free(scratch);
        calls.thread = 0;
      }
    }
    for (const std::uint64_t layer : layers) {
      if (step == 0) {
        states.push_back(calls.alloc(2 * layer));  // made in the first step, kept for good
      } else {
        calls.free(calls.alloc(layer));
      }
    }
    for (const TraceBuilder::Id gradient : gradients) calls.free(gradient);
  }
  calls.free(calls.alloc(5 * kMiB));  // a checkpoint
  for (const TraceBuilder::Id id : parameters) calls.free(id);
  return calls.trace();
}

plan::Plan sample_plan() {
  constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
  plan::DevicePlan device;
  device.device = 0;
  device.granularity = kPage;
  device.handles = {kPage, 2 * kPage, kPage};
  device.physical_bytes = 4 * kPage;
  device.peak_live_bytes = 3 * kPage;
  device.views = {{4 * kPage, {0, 1, 2}}, {2 * kPage, {2, 0}}};
  device.slots = {{0, 1000, 0, 0, 4, 0, 1, plan::SlotKind::Persistent, false},
                  {1, kPage, kPage, 1, 2, 0, 1, plan::SlotKind::Static, true},
                  {2, kPage, kPage, 2, 3, 0, 2, plan::SlotKind::Static, false},
                  {3, kPage, 0, 3, 4, 1, 1, plan::SlotKind::PassThrough, false}};
  device.prologue = 1;
  device.body = 2;
  device.waits = {{2, 1}};
  return {"stalloc test", "trace.fb", 0x1234, {device}};
}

trace::Trace late_trace(int steps, int tensors) {
  constexpr std::uint64_t kMiB = 1 << 20;
  TraceBuilder calls;
  calls.alloc(64 * kMiB);
  std::optional<TraceBuilder::Id> last;
  for (int step = 0; step < steps; ++step) {
    std::optional<TraceBuilder::Id> late;
    for (int i = 0; i < tensors; ++i) {
      const TraceBuilder::Id next = calls.alloc((16 + static_cast<std::uint64_t>(i)) * kMiB);
      const bool is_late = step + 1 < steps && i == step + 1;
      if (is_late) late = last;
      if (last && !is_late) calls.free(*last);
      if (late && i == step + 1 + tensors / 2) calls.free(*std::exchange(late, std::nullopt));
      last = next;
    }
    if (late) calls.free(*late);
  }
  calls.free(*last);
  return std::move(calls.trace());
}

}  // namespace stalloc::test
