// SPDX-License-Identifier: Apache-2.0
// simcuda's functions, some of which a test removes or replaces.
#pragma once

#include <map>
#include <string>

#include "interpose/base/cuda_driver.h"

namespace stalloc::test {

inline std::map<std::string, void*>& replaced_functions() {
  static std::map<std::string, void*> functions;
  return functions;
}

// The finder to give to Cuda. Pre: no other thread replaces a function meanwhile.
inline void* find_function(const char* symbol) noexcept {
  const auto replaced = replaced_functions().find(symbol);
  return replaced != replaced_functions().end() ? replaced->second : cuda_driver::symbol(symbol);
}

// While it lives, `find_function` finds `function` under that name; null: nothing.
class Replaced {
 public:
  template <class Result, class... Parameters>
  Replaced(const char* symbol, Result (*function)(Parameters...)) : symbol_(symbol) {
    replaced_functions()[symbol_] = reinterpret_cast<void*>(function);
  }
  Replaced(const char* symbol, std::nullptr_t /*missing*/) : symbol_(symbol) {
    replaced_functions()[symbol_] = nullptr;
  }
  ~Replaced() { replaced_functions().erase(symbol_); }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;

 private:
  std::string symbol_;
};

}  // namespace stalloc::test
