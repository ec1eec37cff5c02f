// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/copy_mark.h"

#include "catch.h"
#include "child.h"

using stalloc::CopyMark;
using stalloc::test::holds_in_child;

TEST_CASE("a mark tells a process from its copies") {
  const CopyMark mark;
  CHECK_FALSE(mark.in_copy());
  CHECK(holds_in_child([&mark] {
    const CopyMark own;  // of a child that goes on by itself, and has a child
    return mark.in_copy() && !own.in_copy() && holds_in_child([&] { return mark.in_copy() && own.in_copy(); });
  }));
  CHECK_FALSE(mark.in_copy());
}
