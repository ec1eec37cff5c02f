// SPDX-License-Identifier: Apache-2.0
#include "plan/files/plan_file.h"

#include <cstring>

#include "plan/files/byte_checksum.h"
#include "plan/files/checksum.h"
#include "plan/files/file_io.h"
#include "plan_generated.h"

namespace stalloc::plan {
namespace {

constexpr RootField kByteChecksumField{0, planfb::Plan::VT_BYTE_CHECKSUM};
constexpr std::uint16_t kByteChecksumSince = 3;  // minor version
static_assert(kMostPlanBytes == FLATBUFFERS_MAX_BUFFER_SIZE);

planfb::Slot to_wire(const Slot& slot) {
  return {slot.id,           slot.size, slot.offset, slot.lower,
          slot.upper,        slot.view, slot.stream, static_cast<planfb::SlotKind>(slot.kind),
          slot.event_on_free};
}

Slot from_wire(const planfb::Slot& slot) {
  return {slot.id(),           slot.size(), slot.offset(), slot.lower(),
          slot.upper(),        slot.view(), slot.stream(), static_cast<SlotKind>(slot.kind()),
          slot.event_on_free()};
}

void add_text(Checksum& sum, const std::string& text) { sum.add(text.data(), text.size()); }

template <class T>
void add_vector(Checksum& sum, const std::vector<T>& values) {
  sum.add(values.data(), values.size() * sizeof(T));
}

// Covers the fields of version 1.0 but the version and the checksum itself, in the order of the schema. That is what
// readers before 1.3 look at; the byte checksum covers everything.
std::uint64_t checksum_of(const Plan& plan) {
  Checksum sum;
  add_text(sum, plan.writer);
  add_text(sum, plan.source);
  sum.add(&plan.source_checksum, sizeof plan.source_checksum);
  for (const DevicePlan& device : plan.devices) {
    const std::uint64_t numbers[] = {device.device,          device.granularity, device.physical_bytes,
                                     device.peak_live_bytes, device.prologue,    device.body};
    sum.add(numbers, sizeof numbers);
    add_vector(sum, device.handles);
    for (const View& view : device.views) {
      sum.add(&view.bytes, sizeof view.bytes);
      add_vector(sum, view.handles);
    }
    for (const Slot& slot : device.slots) {
      const planfb::Slot wire = to_wire(slot);  // its padding is zero
      sum.add(&wire, sizeof wire);
    }
    for (const Wait& wait : device.waits) sum.add(&wait, sizeof wait);
  }
  return sum.value();
}

flatbuffers::Offset<planfb::DevicePlan> encode_device(flatbuffers::FlatBufferBuilder& builder,
                                                      const DevicePlan& device) {
  std::vector<flatbuffers::Offset<planfb::View>> views;
  views.reserve(device.views.size());
  for (const View& view : device.views) {
    views.push_back(planfb::CreateView(builder, view.bytes, builder.CreateVector(view.handles)));
  }
  std::vector<planfb::Slot> slots;
  slots.reserve(device.slots.size());
  for (const Slot& slot : device.slots) slots.push_back(to_wire(slot));
  std::vector<planfb::Wait> waits;
  waits.reserve(device.waits.size());
  for (const Wait& wait : device.waits) waits.emplace_back(wait.slot, wait.freed);
  const auto handles_at = builder.CreateVector(device.handles);
  const auto views_at = builder.CreateVector(views);
  const auto slots_at = builder.CreateVectorOfStructs(slots);
  const auto waits_at = builder.CreateVectorOfStructs(waits);
  const auto varying_at = device.varying.empty() ? 0 : builder.CreateVector(device.varying);
  const auto lanes_at = device.lanes.empty() ? 0 : builder.CreateVector(device.lanes);
  const auto unplaced_at = device.unplaced.empty() ? 0 : builder.CreateVector(device.unplaced);
  return planfb::CreateDevicePlan(builder, device.device, device.granularity, device.physical_bytes,
                                  device.peak_live_bytes, handles_at, views_at, slots_at, device.prologue, device.body,
                                  waits_at, varying_at, lanes_at, unplaced_at);
}

// Returns no less than the size of the encoded plan: that of its vectors and texts, and the most that tables, lengths
// and padding add.
std::uint64_t bound_encoded_bytes(const Plan& plan) {
  constexpr std::uint64_t kRoot = 512;
  constexpr std::uint64_t kDevice = 512;
  constexpr std::uint64_t kView = 40;
  std::uint64_t bytes = kRoot + plan.writer.size() + plan.source.size();
  for (const DevicePlan& device : plan.devices) {
    bytes += kDevice + device.handles.size() * sizeof(std::uint64_t) + device.slots.size() * sizeof(planfb::Slot) +
             device.waits.size() * sizeof(planfb::Wait) + device.lanes.size() +
             (device.varying.size() + device.unplaced.size()) * sizeof(std::uint32_t);
    for (const View& view : device.views) bytes += kView + view.handles.size() * sizeof(std::uint32_t);
  }
  return bytes;
}

std::string text_of(const flatbuffers::String* text) { return text == nullptr ? std::string() : text->str(); }

// Vectors of a hostile buffer may share their bytes; `budget` keeps what is decoded within the size of the input. The
// verifier does not look at the alignment of a vector's elements, so they are copied as bytes.
template <class Wire, class Element>
bool copy_vector(const flatbuffers::Vector<Element>* from, std::vector<Wire>& to, std::size_t& budget) {
  if (from == nullptr || from->size() == 0) return true;
  if (from->size() > budget / sizeof(Wire)) return false;
  budget -= from->size() * sizeof(Wire);
  to.resize(from->size());
  std::memcpy(static_cast<void*>(to.data()), from->Data(), to.size() * sizeof(Wire));
  return true;
}

bool decode_device(const planfb::DevicePlan& from, DevicePlan& to, std::size_t& budget) {
  to.device = from.device();
  to.granularity = from.granularity();
  to.physical_bytes = from.physical_bytes();
  to.peak_live_bytes = from.peak_live_bytes();
  to.prologue = from.prologue();
  to.body = from.body();
  if (from.views() != nullptr) {
    for (const planfb::View* view : *from.views()) {
      View& copy = to.views.emplace_back();
      copy.bytes = view->bytes();
      if (!copy_vector(view->handles(), copy.handles, budget)) return false;
    }
  }
  std::vector<planfb::Slot> slots;
  std::vector<planfb::Wait> waits;
  if (!copy_vector(from.handles(), to.handles, budget) || !copy_vector(from.slots(), slots, budget) ||
      !copy_vector(from.waits(), waits, budget) || !copy_vector(from.varying(), to.varying, budget) ||
      !copy_vector(from.lanes(), to.lanes, budget) || !copy_vector(from.unplaced(), to.unplaced, budget)) {
    return false;
  }
  to.slots.reserve(slots.size());
  for (const planfb::Slot& slot : slots) to.slots.push_back(from_wire(slot));
  to.waits.reserve(waits.size());
  for (const planfb::Wait& wait : waits) to.waits.push_back({wait.slot(), wait.freed()});
  return true;
}

}  // namespace

std::vector<std::uint8_t> encode_plan(const Plan& plan) {
  flatbuffers::FlatBufferBuilder builder(1 << 16);
  std::vector<flatbuffers::Offset<planfb::DevicePlan>> devices;
  devices.reserve(plan.devices.size());
  for (const DevicePlan& device : plan.devices) devices.push_back(encode_device(builder, device));
  const auto writer = builder.CreateString(plan.writer);
  const auto source = builder.CreateString(plan.source);
  const auto devices_at = builder.CreateVector(devices);
  constexpr std::uint64_t kToBeStored = 1;  // anything but the default, which is left out
  planfb::FinishPlanBuffer(
      builder, planfb::CreatePlan(builder, kPlanVersionMajor, kPlanVersionMinor, writer, source, plan.source_checksum,
                                  checksum_of(plan), devices_at, kToBeStored));
  std::vector<std::uint8_t> bytes(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
  store_byte_checksum(bytes, kByteChecksumField);
  return bytes;
}

bool is_plan(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 8 && planfb::PlanBufferHasIdentifier(bytes.data());
}

Expected<Plan> decode_plan(std::span<const std::uint8_t> bytes) {
  using Result = Expected<Plan>;
  if (bytes.empty()) return Result::failure("not a plan: the file is empty");
  if (!is_plan(bytes)) return Result::failure("not a plan");
  std::vector<std::uint64_t> aligned(bytes.size() / sizeof(std::uint64_t) + 1);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const std::span data(reinterpret_cast<std::uint8_t*>(aligned.data()), bytes.size());
  if (std::string other = find_other_version(data, 0, "plan", kPlanVersionMajor); !other.empty()) {
    return Result::failure(std::move(other));
  }
  constexpr flatbuffers::uoffset_t kDepth = 64;
  flatbuffers::Verifier verifier(data.data(), data.size(), kDepth, kMostPlanTables);
  if (!planfb::VerifyPlanBuffer(verifier)) return Result::failure("truncated or corrupt plan");
  const planfb::Plan& from = *planfb::GetPlan(data.data());
  if (from.version_major() != kPlanVersionMajor) return Result::failure("corrupt plan: it has no version");
  Result result;
  Plan& plan = result.value;
  plan.writer = text_of(from.writer());
  plan.source = text_of(from.source());
  plan.source_checksum = from.source_checksum();
  std::size_t budget = bytes.size();
  if (from.devices() != nullptr) {
    for (const planfb::DevicePlan* device : *from.devices()) {
      if (!decode_device(*device, plan.devices.emplace_back(), budget)) {
        return Result::failure("corrupt plan: more content than bytes");
      }
    }
  }
  const bool sums_bytes = from.version_minor() >= kByteChecksumSince || find_root_field(data, kByteChecksumField, 8);
  if (checksum_of(plan) != from.checksum() || (sums_bytes && !byte_checksum_matches(data, kByteChecksumField))) {
    return Result::failure("corrupt plan: the checksum does not match");
  }
  if (std::string defect = find_defect(plan); !defect.empty()) return Result::failure("unusable plan: " + defect);
  return result;
}

Expected<Plan> read_plan(const std::string& path) {
  const auto find_defect = [](std::span<const std::uint8_t> start) {
    return start.empty() || is_plan(start) ? std::string() : std::string("not a plan");
  };
  const auto bytes = read_file(path, {.most_bytes = kMostPlanBytes, .find_defect = find_defect, .regular_only = true});
  if (!bytes.ok()) return Expected<Plan>::failure(bytes.error);
  Expected<Plan> plan = decode_plan(bytes.value);
  if (!plan.ok()) plan.error = path + ": " + plan.error;
  return plan;
}

std::string write_plan(const Plan& plan, const std::string& path, std::uint64_t most_bytes) {
  if (const std::uint64_t bytes = bound_encoded_bytes(plan); bytes > most_bytes) {
    return "cannot write " + path + ": the plan would have up to " + std::to_string(bytes) +
           " bytes, and one that can be read has at most " + std::to_string(most_bytes);
  }
  std::uint64_t tables = 1 + plan.devices.size();
  for (const DevicePlan& device : plan.devices) tables += device.views.size();
  if (tables > kMostPlanTables) {
    return "cannot write " + path + ": the plan has more views than one that can be read (" +
           std::to_string(kMostPlanTables) + ")";
  }
  return replace_file(path, encode_plan(plan));
}

}  // namespace stalloc::plan
