// SPDX-License-Identifier: Apache-2.0
// Memory of graphs: allocation and free nodes, their lives over launches, and the end of memory.
#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

// A graph that allocates `bytes` and fills the first word. The graph frees the memory, or leaves that to the program.
struct Allocating {
  CUdeviceptr at = 0;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;

  Allocating(CUstream stream, std::size_t bytes, bool frees, unsigned long long flags = 0) {
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocAsync(&at, bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32Async(at, 5, 1, stream) == CUDA_SUCCESS);
    if (frees) REQUIRE(cuMemFreeAsync(at, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    REQUIRE(cuGraphInstantiate(&executable, graph, flags) == CUDA_SUCCESS);
  }
  ~Allocating() {
    cuGraphExecDestroy(executable);
    cuGraphDestroy(graph);
  }
  Allocating(const Allocating&) = delete;
  Allocating& operator=(const Allocating&) = delete;
};

}  // namespace

TEST_CASE("a graph's memory is live from its launch to its free, wherever that is") {
  const Machine machine;
  const CUstream stream = make_stream();
  const Allocating graph(stream, kPage, false);
  CHECK(cuMemFreeAsync(graph.at, stream) == CUDA_ERROR_INVALID_VALUE);  // not before a launch
  for (int i = 0; i < 3; ++i) {
    REQUIRE(cuGraphLaunch(graph.executable, stream) == CUDA_SUCCESS);
    CHECK(cuGraphLaunch(graph.executable, stream) == CUDA_ERROR_INVALID_VALUE);  // not while it is live
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(read_word(graph.at) == 5);
    CHECK((i == 0 ? cuMemFree(graph.at) : cuMemFreeAsync(graph.at, stream)) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(graph.at, stream) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("a graph may free for itself when it is launched again, if asked to") {
  const Machine machine;
  const CUstream stream = make_stream();
  const Allocating graph(stream, kPage, false, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  for (int i = 0; i < 3; ++i) REQUIRE(cuGraphLaunch(graph.executable, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(graph.at, stream) == CUDA_SUCCESS);
}

TEST_CASE("memory that a graph frees is not the program's to free, and there is one executable at a time") {
  const Machine machine;
  const CUstream stream = make_stream();
  const Allocating graph(stream, kPage, true);
  REQUIRE(cuGraphLaunch(graph.executable, stream) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(graph.executable, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(graph.at, stream) == CUDA_ERROR_INVALID_VALUE);
  CUgraphExec second = nullptr;
  CHECK(cuGraphInstantiate(&second, graph.graph, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("what is live outlives its graph, and what is not goes with it") {
  const Machine machine;
  const CUstream stream = make_stream();
  const std::uint64_t before = free_bytes();
  CUdeviceptr live = 0;
  {
    const Allocating first(stream, 3 * kPage, false);
    const Allocating second(stream, 5 * kPage, true);
    live = first.at;
    REQUIRE(cuGraphLaunch(first.executable, stream) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(second.executable, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(free_bytes() == before - 8 * kPage);
  }
  CHECK(free_bytes() == before - 3 * kPage);
  CHECK(read_word(live) == 5);
  REQUIRE(cuMemFreeAsync(live, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  CHECK(cuMemFreeAsync(live, stream) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a graph may free what another one allocated") {
  const Machine machine;
  const CUstream stream = make_stream();
  const Allocating first(stream, kPage, false);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first.at, stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CUgraphExec freeing = nullptr;
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphInstantiate(&freeing, graph, 0) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(freeing, stream) == CUDA_ERROR_INVALID_VALUE);  // nothing to free yet
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuGraphLaunch(first.executable, stream) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(freeing, stream) == CUDA_SUCCESS);
  }
  REQUIRE(cuGraphExecDestroy(freeing) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("graphs run out of memory when they are launched or uploaded, and idle pool memory makes room for them") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUmemoryPool pool = make_pool();
  cuuint64_t keep = UINT64_MAX;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
  const std::size_t all = free_bytes() / kPage * kPage;
  const Allocating graph(stream, all / 2, true);
  const Allocating larger(stream, all, true);
  REQUIRE(cuMemFreeAsync(allocate_from(pool, all * 3 / 4, stream), stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  const bool upload = GENERATE(false, true);
  const auto run = [&](const Allocating& which) {
    return upload ? cuGraphUpload(which.executable, stream) : cuGraphLaunch(which.executable, stream);
  };
  const auto handle = create(kPage);
  CHECK(run(larger) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(run(graph) == CUDA_SUCCESS);
  CHECK(run(larger) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuGraphLaunch(graph.executable, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(free_bytes() >= all / 2 - 2 * kPage);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("launches of one graph run one behind the other, on whichever streams") {
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const Allocating graph(first, kPage, true);
  Gate gate(first);
  REQUIRE(cuGraphLaunch(graph.executable, first) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(graph.executable, second) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
}

TEST_CASE("absurd sizes are out of memory within a capture too, and it goes on") {
  const Machine machine;
  const CUstream stream = make_stream();
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CUdeviceptr at = 0;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, std::size_t{1} << 60}) {
    CHECK(cuMemAllocAsync(&at, bytes, stream) == CUDA_ERROR_OUT_OF_MEMORY);
  }
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}
