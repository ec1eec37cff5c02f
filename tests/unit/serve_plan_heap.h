// A heap that serves what its plan foresees and nothing else.
#pragma once

#include <memory>
#include <string>

#include "fake_driver.h"
#include "interpose/serve/heap.h"

namespace stalloc::test {

inline std::unique_ptr<serve::Heap> plan_only_heap(serve::Driver& driver, const plan::DevicePlan& plan,
                                                   std::string* why, serve::Notice notice = nullptr) {
  serve::HeapOptions options;
  options.dynamic = false;
  return serve::Heap::create(driver, 0, &plan, FakeDriver::context(), options, why, notice);
}

}  // namespace stalloc::test
