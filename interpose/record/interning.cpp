// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/interning.h"

#include <algorithm>

#include "interpose/base/kept_errno.h"
#include "interpose/base/process.h"
#include "interpose/record/python_stack.h"
#include "plan/files/checksum.h"

namespace stalloc::record {
namespace {

// The tables of captured stacks and frames are cleared at this size, for programs that keep compiling Python code.
constexpr std::size_t kMaxCaptured = std::size_t{1} << 18U;

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

std::uint64_t checksum_of(const PythonFrame& frame) {
  Checksum checksum;
  checksum.add_word(frame.fingerprint);
  checksum.add_word(static_cast<std::uint32_t>(frame.instruction));
  return checksum.value();
}

}  // namespace

bool Interning::LoadedModule::is(const loader::Module& other) const {
  return range.low == other.low && range.high == other.high && path == text_of(other.path);
}

// The loader is asked for each new address, and finds it about as fast as a search among the loaded modules.
const Interning::LoadedModule* Interning::find(const void* address) {
  const KeptErrno kept;
  loader::Module range;
  if (!loader::find_module(address, &range)) return nullptr;
  const auto is_known = [&range](const LoadedModule& each) { return each.is(range); };
  const auto known = std::find_if(loaded_.begin(), loaded_.end(), is_known);
  if (known != loaded_.end()) return &*known;
  forget_unloaded();
  expect_python();
  std::string path = text_of(range.path);
  const std::uint32_t id = module_id(path.empty() ? program_path() : path, {});
  loaded_.push_back({range, std::move(path), id});
  return &loaded_.back();
}

// Others may be loaded by now where the unloaded modules were.
void Interning::forget_unloaded() {
  const KeptErrno kept;
  const auto is_gone = [](const LoadedModule& each) {
    loader::Module now;
    return !loader::find_module(each.range.low, &now) || !each.is(now);
  };
  if (std::erase_if(loaded_, is_gone) == 0) return;
  module_by_address_.clear();
  stacks_.clear();
}

std::uint32_t Interning::module_id(std::string path, std::string function) {
  const auto next = static_cast<std::uint32_t>(modules_.size() + 1);
  const auto [entry, inserted] = modules_.try_emplace({std::move(path), std::move(function)}, next);
  if (inserted) {
    new_modules_.push_back({next, entry->first.first, entry->first.second});
    new_bytes_ += trace::bytes_in_chunk(new_modules_.back());
  }
  return entry->second;
}

std::uint32_t Interning::module_of(const void* address) {
  if (address == nullptr) return 0;
  if (const auto known = module_by_address_.find(address); known != module_by_address_.end()) return known->second;
  const LoadedModule* module = find(address);
  return module_by_address_[address] = module == nullptr ? 0 : module->id;
}

trace::Frame Interning::native_frame(const void* address) {
  const LoadedModule* module = find(address);
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
  return entry->second = trace::Frame(place.line, module_id(std::move(place.file), std::move(place.function)));
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
  if (const auto known = stacks_.find(checksum.value()); known != stacks_.end()) return known->second;
  std::vector<trace::Frame> frames;
  frames.reserve(addresses.size() + python.size());
  for (const void* address : addresses) frames.push_back(native_frame(address));
  for (const PythonFrame& frame : python) {
    const trace::Frame made = python_frame(frame);
    if (made.module_() != 0) frames.push_back(made);
  }
  if (stacks_.size() >= kMaxCaptured) stacks_.clear();
  return stacks_[checksum.value()] = add_stack(std::move(frames));
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
  if (inserted) {
    new_stacks_.push_back({next, std::move(frames)});
    new_bytes_ += trace::bytes_in_chunk(new_stacks_.back());
  }
  return entry->second;
}

void Interning::forget_new() {
  new_modules_.clear();
  new_stacks_.clear();
  new_bytes_ = 0;
  forget_unloaded();
}

}  // namespace stalloc::record
