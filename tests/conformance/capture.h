// SPDX-License-Identifier: Apache-2.0
// A stream capture that ends whatever happens.
#pragma once

#include "tests/conformance/machine.h"

namespace stalloc::conformance {

class Capture {
 public:
  Capture(const Machine& machine, CUstream stream, CUstreamCaptureMode mode) : machine_(machine), stream_(stream) {
    machine.must(machine.cuda.cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture");
  }
  ~Capture() {
    CUgraph graph = nullptr;
    if (!ended_ && machine_.cuda.cuStreamEndCapture(stream_, &graph) == CUDA_SUCCESS) {
      machine_.cuda.cuGraphDestroy(graph);
    }
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // The caller destroys the graph.
  CUgraph end() {
    CUgraph graph = nullptr;
    machine_.must(end(&graph), "cuStreamEndCapture");
    return graph;
  }
  CUresult end(CUgraph* graph) {
    ended_ = true;
    return machine_.cuda.cuStreamEndCapture(stream_, graph);
  }

 private:
  const Machine& machine_;
  const CUstream stream_;
  bool ended_ = false;
};

}  // namespace stalloc::conformance
