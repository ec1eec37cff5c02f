// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/event_order.h"

#include <sys/mman.h>

#include <new>

namespace stalloc::serve {

EventOrder::EventOrder() {
  void* entries =
      mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (entries == MAP_FAILED) throw std::bad_alloc();
  entries_ = static_cast<Entry*>(entries);
}

EventOrder::~EventOrder() { munmap(entries_, kTableBytes); }

bool EventOrder::may_record_by(std::string_view symbol) noexcept {
  const bool of_driver =
      symbol.size() > 2 && symbol[0] == 'c' && symbol[1] == 'u' && symbol[2] >= 'A' && symbol[2] <= 'Z';
  if (!of_driver) return false;
  const bool records =
      symbol.find("EventRecord") != std::string_view::npos || symbol.find("RecordEvent") != std::string_view::npos;
  const bool only_reads = symbol.find("GetEvent") != std::string_view::npos;
  constexpr std::array<std::string_view, 8> kOthers{
      "cuEventCreate",  "cuEventDestroy",       "cuIpcOpenEvent",           "cuIpcGetEvent",
      "cuGraphAddNode", "cuGraphNodeSetParams", "cuGraphExecNodeSetParams", "cuLaunchKernelEx"};
  bool other = false;
  for (const std::string_view name : kOthers) other = other || symbol.starts_with(name);
  return other || (records && !only_reads);
}

void EventOrder::looked_up(std::string_view symbol) noexcept {
  if (may_record_by(symbol)) distrusted_.store(true, std::memory_order_release);
}

}  // namespace stalloc::serve
