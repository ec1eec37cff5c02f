// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/destroyed_streams.h"

#include <cstdint>

#include "catch.h"

using namespace stalloc;

TEST_CASE("the handle of a destroyed stream is known until CUDA gives it to another one", "[base]") {
  const auto first = reinterpret_cast<CUstream>(std::uintptr_t{0x1000});
  const auto second = reinterpret_cast<CUstream>(std::uintptr_t{0x2000});
  REQUIRE_FALSE(is_destroyed(first));
  note_stream_created(first);
  REQUIRE(note_stream_destroyed(first));
  REQUIRE(is_destroyed(first));
  REQUIRE_FALSE(is_destroyed(second));
  REQUIRE_FALSE(note_stream_destroyed(first));
  note_stream_created(second);
  REQUIRE(is_destroyed(first));
  note_stream_created(first);
  REQUIRE_FALSE(is_destroyed(first));
  REQUIRE(note_stream_destroyed(first));
}
