// What one actor does while no other does anything: calls whose answers depend on what the others hold, or that concern
// them all.
#pragma once

#include "tests/conformance/differential/actor.h"

namespace stalloc::conformance {

class Alone {
 public:
  explicit Alone(Actor& actor) : actor_(actor) {}

  // One of them. pre: the actor's context is current.
  void act();
  // The primary context of the actor's device ends and begins again: `begin_again` of all its actors has to follow.
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
