// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/interning.h"

#include "interpose/base/kept_errno.h"
#include "interpose/base/process.h"
#include "interpose/record/python_stack.h"
#include "plan/files/checksum.h"

namespace stalloc::record {
namespace {

// The tables of captured stacks and frames are cleared at this size, for programs that keep compiling Python code.
constexpr std::size_t kMaxCaptured = std::size_t{1} << 18U;

std::uint64_t checksum_of(const PythonFrame& frame) {
  Checksum checksum;
  checksum.add_word(frame.fingerprint);
  checksum.add_word(static_cast<std::uint32_t>(frame.instruction));
  return checksum.value();
}

}  // namespace

const Interning::KnownModule* Interning::find(const void* address) {
  for (const KnownModule& known : modules_) {
    if (known.range.holds(address)) return &known;
  }
  const KeptErrno kept;
  loader::Module range;
  if (!loader::find_module(address, &range)) return nullptr;
  const bool program = range.path == nullptr || *range.path == '\0';
  expect_python();
  modules_.push_back({range, add_module(program ? program_path() : std::string(range.path), {})});
  return &modules_.back();
}

std::uint32_t Interning::add_module(std::string path, std::string function) {
  new_modules_.push_back({last_module_ + 1, std::move(path), std::move(function)});
  return ++last_module_;
}

std::uint32_t Interning::module_of(const void* address) {
  if (address == nullptr) return 0;
  const auto [entry, inserted] = module_by_address_.try_emplace(address, 0);
  if (inserted) {
    const KnownModule* module = find(address);
    entry->second = module == nullptr ? 0 : module->id;
  }
  return entry->second;
}

trace::Frame Interning::native_frame(const void* address) {
  const KnownModule* module = find(address);
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const auto base = module == nullptr ? 0 : reinterpret_cast<std::uint64_t>(module->range.low);
  return {at - base, module == nullptr ? 0 : module->id};
}

trace::Frame Interning::python_frame(const PythonFrame& frame) {
  if (python_frames_.size() >= kMaxCaptured) python_frames_.clear();
  const auto [entry, inserted] = python_frames_.try_emplace(checksum_of(frame), 0, 0);
  if (!inserted) return entry->second;
  PythonPlace place;
  if (!describe_python_frame(frame, &place) || place.function.empty()) return entry->second;
  const std::uint32_t line = place.line;
  const auto [function, is_new] = functions_.try_emplace({std::move(place.file), std::move(place.function)}, 0);
  if (is_new) function->second = add_module(function->first.first, function->first.second);
  entry->second = trace::Frame(line, function->second);
  return entry->second;
}

std::uint32_t Interning::stack_of(std::span<void* const> addresses, std::span<const PythonFrame> python) {
  static const loader::Module self = [] {
    loader::Module module;
    loader::find_module(reinterpret_cast<const void*>(&program_path), &module);
    return module;
  }();
  while (!addresses.empty() && self.holds(addresses.front())) addresses = addresses.subspan(1);
  if (addresses.empty() && python.empty()) return 0;
  Checksum checksum;
  checksum.add(addresses.data(), addresses.size_bytes());
  for (const PythonFrame& frame : python) checksum.add_word(checksum_of(frame));
  if (stacks_.size() >= kMaxCaptured) stacks_.clear();
  const auto [entry, inserted] = stacks_.try_emplace(checksum.value(), 0);
  if (!inserted) return entry->second;
  std::vector<trace::Frame> frames;
  frames.reserve(addresses.size() + python.size());
  for (const void* address : addresses) frames.push_back(native_frame(address));
  for (const PythonFrame& frame : python) {
    const trace::Frame made = python_frame(frame);
    if (made.module_() != 0) frames.push_back(made);
  }
  entry->second = add_stack(std::move(frames));
  return entry->second;
}

std::uint32_t Interning::add_stack(std::vector<trace::Frame> frames) {
  if (frames.empty()) return 0;
  Checksum checksum;
  for (const trace::Frame& frame : frames) {
    checksum.add_word(frame.offset());
    checksum.add_word(frame.module_());
  }
  const auto next = static_cast<std::uint32_t>(written_stacks_.size() + 1);
  const auto [entry, inserted] = written_stacks_.try_emplace(checksum.value(), next);
  if (inserted) new_stacks_.push_back({next, std::move(frames)});
  return entry->second;
}

void Interning::forget_new() {
  new_modules_.clear();
  new_stacks_.clear();
}

}  // namespace stalloc::record
