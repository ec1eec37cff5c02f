// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/program_streams.h"

#include <cstdint>

#include "catch.h"

using namespace stalloc;

TEST_CASE("the handle of a destroyed stream is known until CUDA gives it to another one", "[base]") {
  const auto first = reinterpret_cast<CUstream>(std::uintptr_t{0x1000});
  const auto second = reinterpret_cast<CUstream>(std::uintptr_t{0x2000});
  REQUIRE_FALSE(is_destroyed(first));
  note_stream_created(first, CU_STREAM_NON_BLOCKING);
  REQUIRE(note_stream_destroyed(first));
  REQUIRE(is_destroyed(first));
  REQUIRE_FALSE(is_destroyed(second));
  REQUIRE_FALSE(note_stream_destroyed(first));
  note_stream_created(second, CU_STREAM_DEFAULT);
  REQUIRE(is_destroyed(first));
  note_stream_created(first, CU_STREAM_NON_BLOCKING);
  REQUIRE_FALSE(is_destroyed(first));
  REQUIRE(note_stream_destroyed(first));
  note_stream_kept(first);
  REQUIRE_FALSE(is_destroyed(first));
  REQUIRE(is_non_blocking(first));
}

TEST_CASE("a stream is known as non-blocking only as long as the handle is that of one", "[base]") {
  const auto stream = reinterpret_cast<CUstream>(std::uintptr_t{0x3000});
  REQUIRE_FALSE(is_non_blocking(stream));
  REQUIRE_FALSE(is_non_blocking(CU_STREAM_LEGACY));
  REQUIRE_FALSE(is_non_blocking(CU_STREAM_PER_THREAD));
  note_stream_created(stream, CU_STREAM_NON_BLOCKING);
  REQUIRE(is_non_blocking(stream));
  REQUIRE(note_stream_destroyed(stream));
  note_stream_created(stream, CU_STREAM_DEFAULT);
  REQUIRE_FALSE(is_non_blocking(stream));
}
