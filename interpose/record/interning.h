// SPDX-License-Identifier: Apache-2.0
// Numbers for modules and call stacks, which repeat in a trace. Each is written once, when first seen.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interpose/base/loader.h"
#include "plan/files/trace_file.h"

namespace stalloc::record {

// Not thread-safe: the recorder's lock covers it. May throw std::bad_alloc.
class Interning {
 public:
  // The id of the module that holds `address`; 0 for none.
  std::uint32_t module_of(const void* address);
  // The id of the stack of these return addresses, less the leading ones inside this library; 0 for an empty one.
  std::uint32_t stack_of(std::span<void* const> addresses);

  // What was first seen since the last `forget_new`.
  [[nodiscard]] std::span<const trace::Module> new_modules() const { return new_modules_; }
  [[nodiscard]] std::span<const trace::Stack> new_stacks() const { return new_stacks_; }
  void forget_new();

 private:
  struct KnownModule {
    loader::Module range;
    std::uint32_t id = 0;
  };
  const KnownModule* find(const void* address);

  std::vector<KnownModule> modules_;
  std::unordered_map<const void*, std::uint32_t> module_by_address_;
  std::unordered_map<std::uint64_t, std::uint32_t> stacks_;  // by checksum of the return addresses
  std::vector<trace::Module> new_modules_;
  std::vector<trace::Stack> new_stacks_;
};

}  // namespace stalloc::record
