// SPDX-License-Identifier: Apache-2.0
// What one actor does while no other does anything: calls whose answers depend on what the others hold, or that concern
// all of them.
#pragma once

#include "tests/conformance/differential/actor.h"

namespace stalloc::conformance {

class Alone {
 public:
  explicit Alone(Actor& actor) : actor_(actor) {}

  // Makes one of these calls. Pre: the actor's context is current.
  void act();
  // Ends the primary context of the actor's device and begins it again. The caller then calls `begin_again` of all
  // actors of the device.
  void reset();

 private:
  void double_frees();
  void exhaust();
  void probe();
  void figures();
  void current_pool();
  void beside_capture();
  void settle();

  Actor& actor_;
};

}  // namespace stalloc::conformance
