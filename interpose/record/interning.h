// SPDX-License-Identifier: Apache-2.0
// Gives numbers to modules and call stacks, which repeat in a trace. Each is written once, when it is first seen, also
// if a library is loaded again and again.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interpose/base/loader.h"
#include "interpose/record/python_frames.h"
#include "plan/files/trace_file.h"

namespace stalloc::record {

// Not thread-safe: the recorder's lock covers it. May throw std::bad_alloc.
//
// What was found of an address is remembered. A program may unload a library and load another one at its addresses;
// what was remembered is forgotten when this is noticed: where an address is new, or at `forget_new`. Until then, an
// address counts for the library that was there before.
class Interning {
 public:
  // The id of the module that contains `address`; 0: there is none.
  std::uint32_t module_of(const void* address);
  // The id of a stack: these return addresses, without the leading ones inside this library, followed by these frames
  // of Python code, which the calling thread has just captured. 0: the stack is empty.
  std::uint32_t stack_of(std::span<void* const> addresses, std::span<const PythonFrame> python = {});

  // The modules and stacks that were first seen since the last `forget_new`.
  [[nodiscard]] std::span<const trace::Module> new_modules() const { return new_modules_; }
  [[nodiscard]] std::span<const trace::Stack> new_stacks() const { return new_stacks_; }
  void forget_new();
  // True if these are as much as one chunk should hold.
  [[nodiscard]] bool fill_chunk() const { return new_bytes_ >= trace::kFullChunkBytes; }

 private:
  struct LoadedModule {
    loader::Module range;
    std::string path;  // a copy of the range's
    std::uint32_t id = 0;
    [[nodiscard]] bool is(const loader::Module& other) const;
  };
  const LoadedModule* find(const void* address);
  void forget_unloaded();
  std::uint32_t module_id(std::string path, std::string function);
  std::uint32_t add_stack(std::vector<trace::Frame> frames);
  trace::Frame native_frame(const void* address);
  trace::Frame python_frame(const PythonFrame& frame);

  std::vector<LoadedModule> loaded_;  // those that held an address, and were not unloaded as far as is known
  std::unordered_map<const void*, std::uint32_t> module_by_address_;
  // By path, and by the name of a function in Python code, which is empty for a library.
  std::map<std::pair<std::string, std::string>, std::uint32_t> modules_;
  std::unordered_map<std::uint64_t, std::uint32_t> stacks_;  // by checksum of the captured addresses
  // The same stack may be captured with different addresses, since Python may compile the same code again.
  std::unordered_map<std::uint64_t, std::uint32_t> written_stacks_;  // by checksum of the written frames
  std::unordered_map<std::uint64_t, trace::Frame> python_frames_;    // by checksum; module 0: a frame without a name
  std::vector<trace::Module> new_modules_;
  std::vector<trace::Stack> new_stacks_;
  std::uint64_t new_bytes_ = 0;  // of both, in a chunk
};

}  // namespace stalloc::record
