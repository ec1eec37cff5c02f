// SPDX-License-Identifier: Apache-2.0
// What the online allocator is built on: physical memory, mappings, and the order between streams.
//
// The library's backend calls the CUDA driver (interpose/serve/dynamic/device_backend.h). The backend of simulations
// does nothing (plan/simulate/null_backend.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "plan/online/mapping_budget.h"
#include "plan/placement/range.h"
#include "plan/placement/stitched_view.h"

namespace stalloc::plan {

// In a request: any stream may use the bytes at once. In a free: the device has finished with the bytes. The streams of
// a program have other, small numbers.
inline constexpr StreamIndex kAnyStream = 0;

// An address that a backend reserved: in the home view, where each handle is mapped once, or in the range
// for stitched views. `offset` counts bytes from the beginning of either.
struct VirtualAddress {
  enum class Space : std::uint8_t { Home, Views };
  Space space = Space::Home;
  std::uint64_t offset = 0;
};

// A backend that refuses a call has changed nothing, except for `unmap`, and for `map` where it could not undo what it
// had done: `is_vacant` then says which addresses must not be used again. Ranges are ranges of physical offsets that
// begin and end at multiples of kUnitBytes. No function throws, and none waits on the host.
template <class B>
concept OnlineBackend = requires(B& backend, std::uint64_t at, std::uint64_t needed, bool serves_large,
                                 std::uint64_t free_number, VirtualAddress address, const typename B::Handle& handle,
                                 std::span<typename B::Handle> new_handles, std::span<const typename B::Handle> handles,
                                 const typename B::Block& block, std::span<const Range> ranges, StreamIndex stream) {
  // A piece of physical memory: how many bytes it has, and its name in the backend.
  requires std::is_aggregate_v<typename B::Handle>;
  { handle.bytes } -> std::convertible_to<std::uint64_t>;
  { handle.id } -> std::convertible_to<std::uint64_t>;
  // A block that was served, as the backend's user knows it, and the view that it lies in.
  { block.view } -> std::convertible_to<std::uint32_t>;

  // Creates physical memory for each of the handles (`bytes` is given, `id` is set) and maps them one after another in
  // the home view from `at` on. Nothing is pending on their bytes.
  { backend.create(at, new_handles) }
  noexcept->std::same_as<bool>;
  // How many bytes `create` can still create. The answer may be an estimate if it is more than twice `needed`. Called
  // before memory grows, and sometimes when it does not grow.
  { backend.room(needed) }
  noexcept->std::same_as<std::uint64_t>;
  // Unmaps a handle from its place in the home view and gives its memory back. Pre: no work is pending on its bytes.
  { backend.destroy(at, handle) }
  noexcept->std::same_as<bool>;
  // Maps existing handles one after another from `address` on.
  { backend.map(address, handles) }
  noexcept->std::same_as<bool>;
  // Undoes `map`. False: something is still mapped there. Pre: no work is pending that uses these addresses.
  { backend.unmap(address, handles) }
  noexcept->std::same_as<bool>;
  // False if something is still mapped at these addresses that could not be unmapped.
  { std::as_const(backend).is_vacant(address, needed) }
  noexcept->std::same_as<bool>;
  // Orders the use of free bytes on `stream` after every free of them; for kAnyStream, true only when all those frees
  // are complete. False: the bytes may still be in use.
  { backend.make_ready(ranges, stream) }
  noexcept->std::same_as<bool>;
  // The same, but false where the stream would have to wait for another one after which the program itself will
  // probably order it a little later. Pre: the stream is not kAnyStream.
  { backend.make_ready_without_avoidable_wait(ranges, stream) }
  noexcept->std::same_as<bool>;
  // Whether the stream may use the bytes at once, as far as is known without asking the device. Pre: the stream is not
  // kAnyStream.
  { std::as_const(backend).is_ready(ranges, stream) }
  noexcept->std::same_as<bool>;
  // True only when the device is known to have finished with the bytes.
  { backend.is_complete(ranges) }
  noexcept->std::same_as<bool>;
  // True if another stream had freed some of the bytes that were made ready last. The answer is only counted.
  { std::as_const(backend).made_foreign_ready() }
  noexcept->std::same_as<bool>;
  // Whether several streams use memory. If not, no stream ever waits for a free.
  { std::as_const(backend).is_shared() }
  noexcept->std::same_as<bool>;
  // Returns a number for a free on `stream`, which is not kAnyStream. Called when the program frees the bytes, so that
  // a stream that waits for the free need not wait for later work of `stream`.
  { backend.assign_free_number(stream) }
  noexcept->std::same_as<std::uint64_t>;
  // The bytes were freed on `stream` by the free of that number; kAnyStream: the device has finished with them.
  { backend.freed(ranges, stream, free_number) }
  noexcept;
  // The number of the latest free. Numbers never go down.
  { backend.latest_free() }
  noexcept->std::same_as<std::uint64_t>;
  // Finds out which frees are complete. It is called often and asks the device few questions, so some complete frees
  // may become known only at the next call.
  { backend.poll_frees() }
  noexcept;
  // The same, but asks the device as often as it takes to know all frees that are complete now. For rare calls.
  { backend.poll_frees_thoroughly() }
  noexcept;
  // True only when every free up to that number is already known to be complete. Does not ask the device.
  { std::as_const(backend).is_known_complete_up_to(free_number) }
  noexcept->std::same_as<bool>;
  // True only when every free up to that number is complete.
  { backend.is_complete_up_to(free_number) }
  noexcept->std::same_as<bool>;
  // The time that all calls of `create`, `destroy`, `map` and `unmap` have taken, and the time that has passed. The
  // allocator itself measures the part of it that is for stitching.
  { std::as_const(backend).mapping_time() }
  noexcept->std::same_as<MappingTime>;
  // Where a block lies; `address` is the beginning of its view, if that is a stitched one.
  { std::as_const(backend).place(block, address) }
  noexcept->std::same_as<Place>;
};

}  // namespace stalloc::plan
