// Captures of one actor: what it requests, frees and asks within them, what it does elsewhere meanwhile, and what the
// graph does then.
#pragma once

#include "tests/conformance/differential/actor.h"

namespace stalloc::conformance {

class Capturing {
 public:
  explicit Capturing(Actor& actor) : actor_(actor) {}

  // A capture that is not global, of a stream that does not block: others go on beside it.
  void capture();
  // A global one, or one of a blocking stream. pre: no other actor does anything.
  void capture_alone();

 private:
  void capture(CUstreamCaptureMode mode, CUstream stream);
  // One node or more, or what must be refused.
  void within(CUstream stream);
  // Requests of nothing, of too much, and of what is not the graph's.
  void refused_within(CUstream stream);
  // What the mode allows the capturing thread to do on other streams.
  void meanwhile(CUstreamCaptureMode mode);
  void launch(CUgraph graph, CUstream stream);

  Actor& actor_;
  CUdeviceptr target_ = 0;           // outside; the graph writes it
  std::uint32_t pattern_ = 0;        // that it holds when the graph is done
  std::vector<CUdeviceptr> kept_{};  // of the graph, freed after each launch
};

}  // namespace stalloc::conformance
