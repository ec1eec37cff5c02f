// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/interning.h"

#include <string>

#include "interpose/base/process.h"
#include "plan/files/checksum.h"

namespace stalloc::record {

const Interning::KnownModule* Interning::find(const void* address) {
  for (const KnownModule& known : modules_) {
    if (known.range.holds(address)) return &known;
  }
  loader::Module range;
  if (!loader::find_module(address, &range)) return nullptr;
  const auto id = static_cast<std::uint32_t>(modules_.size() + 1);
  const bool program = range.path == nullptr || *range.path == '\0';
  new_modules_.push_back({id, program ? program_path() : std::string(range.path)});
  modules_.push_back({range, id});
  return &modules_.back();
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

std::uint32_t Interning::stack_of(std::span<void* const> addresses) {
  static const loader::Module self = [] {
    loader::Module module;
    loader::find_module(reinterpret_cast<const void*>(&program_path), &module);
    return module;
  }();
  while (!addresses.empty() && self.holds(addresses.front())) addresses = addresses.subspan(1);
  if (addresses.empty()) return 0;
  Checksum checksum;
  checksum.add(addresses.data(), addresses.size_bytes());
  const auto next = static_cast<std::uint32_t>(stacks_.size() + 1);
  const auto [entry, inserted] = stacks_.try_emplace(checksum.value(), next);
  if (!inserted) return entry->second;
  trace::Stack stack{next, {}};
  stack.frames.reserve(addresses.size());
  for (const void* address : addresses) {
    const KnownModule* module = find(address);
    const auto at = reinterpret_cast<std::uint64_t>(address);
    const auto base = module == nullptr ? 0 : reinterpret_cast<std::uint64_t>(module->range.low);
    stack.frames.emplace_back(at - base, module == nullptr ? 0 : module->id);
  }
  new_stacks_.push_back(std::move(stack));
  return next;
}

void Interning::forget_new() {
  new_modules_.clear();
  new_stacks_.clear();
}

}  // namespace stalloc::record
