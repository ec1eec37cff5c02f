// SPDX-License-Identifier: Apache-2.0
// Events, and other calls that order the work of streams or show that it is complete (serve/streams/event_order.h).
#include "interpose/hooks/actions.h"
#include "interpose/hooks/allocation.h"
#include "interpose/session/event_tracking.h"

namespace stalloc::hooks::events {
namespace {

using serve::StreamClock;
using serve::StreamClocks;

// Null: events are not watched.
serve::EventOrder* watched() noexcept { return event_tracking::order.load(std::memory_order_acquire); }

StreamClock* clock_of(CUstream stream, DefaultStream default_stream) noexcept {
  Heaps* heaps = Session::known_heaps();
  return heaps == nullptr ? nullptr : heaps->stream_clock(key_of(stream, default_stream));
}

StreamClocks* clocks_with(std::uint64_t id) noexcept {
  Heaps* heaps = Session::known_heaps();
  return heaps == nullptr ? nullptr : heaps->clocks(id);
}

template <class... Flags>
CUresult record_on(const Call<CUresult(CUevent, CUstream, Flags...)>& call, CUevent event, CUstream stream,
                   DefaultStream default_stream, std::type_identity_t<Flags>... flags) noexcept {
  serve::EventOrder* order = watched();
  if (order == nullptr) return call.original(event, stream, flags...);
  return order->record(
      event, Session::captures().gate(), [&] { return clock_of(stream, default_stream); },
      [&] { return call.original(event, stream, flags...); });
}

template <class Ask>
CUresult observe_event(CUevent event, Ask ask) noexcept {
  serve::EventOrder* order = watched();
  return order == nullptr ? ask() : order->observe_completion(event, clocks_with, ask);
}

template <class Ask>
CUresult observe_stream(CUstream stream, DefaultStream default_stream, Ask ask) noexcept {
  const serve::EventOrder* order = watched();
  StreamClock* clock = order != nullptr && order->is_tracking() ? clock_of(stream, default_stream) : nullptr;
  if (clock == nullptr) return ask();
  StreamClock::Snapshot known;
  clock->snapshot(&known);
  const CUresult result = ask();
  if (result == CUDA_SUCCESS) clock->all().mark_complete(known);
  return result;
}

// `context` may be null: then no heap belongs to it.
template <class Ask>
CUresult observe_context(CUcontext context, Ask ask) noexcept {
  Heaps* heaps = watched() != nullptr && context != nullptr ? Session::known_heaps() : nullptr;
  serve::Heap* heap = heaps == nullptr ? nullptr : heaps->find(context);
  if (heap == nullptr) return ask();
  const std::uint64_t number = heap->clocks().latest_number();
  const CUresult result = ask();
  if (result == CUDA_SUCCESS) heap->clocks().mark_all_complete(number);
  return result;
}

// Runs a call of the program that synchronizes. CUDA's pools then release memory above their release thresholds, and so
// do the heaps.
template <class Wait>
CUresult synchronized(Wait wait) noexcept {
  const CUresult result = wait();
  Heaps* heaps = Session::known_active_heaps();
  if (result == CUDA_SUCCESS && heaps != nullptr) heaps->after_synchronization();
  return result;
}

}  // namespace

void distrust(CUevent event) noexcept {
  if (serve::EventOrder* order = watched()) order->distrust(event);
}

bool may_record_by(const char* symbol) noexcept { return serve::EventOrder::may_record_by(symbol); }

void looked_up(const char* symbol) noexcept {
  if (serve::EventOrder* order = watched()) order->looked_up(symbol);
}

CUresult create(const Call<CUresult(CUevent*, unsigned)>& call, CUevent* event, unsigned flags) noexcept {
  const CUresult result = call.original(event, flags);
  serve::EventOrder* order = watched();
  if (result != CUDA_SUCCESS || order == nullptr) return result;
  order->forget(*event);
  if (Heaps* heaps = Session::known_active_heaps()) heaps->create_events_ahead();
  if ((flags & CU_EVENT_INTERPROCESS) != 0) order->distrust(*event);
  return result;
}

CUresult destroy(const Call<CUresult(CUevent)>& call, CUevent event) noexcept {
  if (serve::EventOrder* order = watched()) order->forget(event);
  return call.original(event);
}

CUresult record(const Call<CUresult(CUevent, CUstream)>& call, CUevent event, CUstream stream,
                DefaultStream default_stream) noexcept {
  return record_on(call, event, stream, default_stream);
}

CUresult record(const Call<CUresult(CUevent, CUstream, unsigned)>& call, CUevent event, CUstream stream, unsigned flags,
                DefaultStream default_stream) noexcept {
  if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0) distrust(event);  // it becomes a node of a graph
  return record_on(call, event, stream, default_stream, flags);
}

CUresult record_context(const Call<CUresult(CUcontext, CUevent)>& call, CUcontext context, CUevent event) noexcept {
  serve::EventOrder* order = watched();
  if (order == nullptr) return call.original(context, event);
  return order->record_untracked(event, [&] { return call.original(context, event); });
}

CUresult record_context(const Call<CUresult(CUgreenCtx_st*, CUevent)>& call, CUgreenCtx_st* context,
                        CUevent event) noexcept {
  serve::EventOrder* order = watched();
  if (order == nullptr) return call.original(context, event);
  return order->record_untracked(event, [&] { return call.original(context, event); });
}

CUresult wait(const Call<CUresult(CUstream, CUevent, unsigned)>& call, CUstream stream, CUevent event, unsigned flags,
              DefaultStream default_stream) noexcept {
  const auto original = [&] { return captures::wait_event(call, stream, event, flags, default_stream); };
  serve::EventOrder* order = watched();
  if (order == nullptr || flags != CU_EVENT_WAIT_DEFAULT) return original();
  return order->wait(
      event, Session::captures().gate(), [&] { return clock_of(stream, default_stream); }, original);
}

CUresult query(const Call<CUresult(CUevent)>& call, CUevent event) noexcept {
  return observe_event(event, [&] { return call.original(event); });
}

CUresult synchronize(const Call<CUresult(CUevent)>& call, CUevent event) noexcept {
  return synchronized([&] { return query(call, event); });
}

CUresult query_stream(const Call<CUresult(CUstream)>& call, CUstream stream, DefaultStream default_stream) noexcept {
  return observe_stream(stream, default_stream, [&] { return call.original(stream); });
}

CUresult synchronize_stream(const Call<CUresult(CUstream)>& call, CUstream stream,
                            DefaultStream default_stream) noexcept {
  return synchronized([&] { return query_stream(call, stream, default_stream); });
}

CUresult synchronize_context(const Call<CUresult()>& call) noexcept {
  return synchronized(
      [&] { return observe_context(Session::cuda().current_context(), [&] { return call.original(); }); });
}

CUresult synchronize_context(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept {
  return synchronized([&] { return observe_context(context, [&] { return call.original(context); }); });
}

void distrust_launch(const CUlaunchConfig* launch) noexcept {
  if (launch == nullptr || launch->attrs == nullptr) return;
  for (unsigned i = 0; i < launch->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = launch->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) distrust(attribute.value.programmaticEvent.event);
    // CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, which headers before CUDA 12.3 lack, has the same layout.
    if (static_cast<int>(attribute.id) == 12) distrust(attribute.value.programmaticEvent.event);
  }
}

void distrust_node(const CUgraphNodeParams* node) noexcept {
  if (node != nullptr && node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) distrust(node->eventRecord.event);
}

}  // namespace stalloc::hooks::events
