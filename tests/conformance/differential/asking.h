// SPDX-License-Identifier: Apache-2.0
// Requests that no driver can serve, misuse, and questions about memory, which one actor makes beside the others.
#pragma once

#include "tests/conformance/differential/actor.h"

namespace stalloc::conformance {

class Asking {
 public:
  explicit Asking(Actor& actor) : actor_(actor) {}

  // Makes one of these calls.
  void ask();

 private:
  void impossible();
  void misuse();
  void questions();

  Actor& actor_;
};

}  // namespace stalloc::conformance
