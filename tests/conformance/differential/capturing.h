// SPDX-License-Identifier: Apache-2.0
// Captures of one actor: what it requests, frees and asks in them, what it does on other streams meanwhile, and what
// the graph does then.
#pragma once

#include "tests/conformance/differential/actor.h"

namespace stalloc::conformance {

class Capturing {
 public:
  explicit Capturing(Actor& actor) : actor_(actor) {}

  // Makes a capture that is not global, of a stream that does not block. Other actors go on meanwhile.
  void capture();
  // Makes a global capture, or one of a blocking stream. Pre: no other actor does anything.
  void capture_alone();

 private:
  void capture(CUstreamCaptureMode mode, CUstream stream);
  // Captures one node or more, or makes calls that must be refused.
  void within(CUstream stream);
  // Requests nothing or too much, and frees what is not the graph's.
  void refused_within(CUstream stream);
  // Does what the mode allows the capturing thread to do on other streams.
  void meanwhile(CUstreamCaptureMode mode);
  void launch(CUgraph graph, CUstream stream);

  Actor& actor_;
  CUdeviceptr target_ = 0;           // memory outside the graph, which the graph writes
  std::uint32_t pattern_ = 0;        // what the target holds when the graph is done
  std::vector<CUdeviceptr> kept_{};  // memory of the graph that is freed after each launch
};

}  // namespace stalloc::conformance
