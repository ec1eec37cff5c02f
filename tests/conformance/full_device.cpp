// SPDX-License-Identifier: Apache-2.0
// Functions that take device memory for themselves: they load kernels and variables, and enlarge the stacks of a
// device. Each is called while all memory is allocated, and while a pool keeps all of it although nothing is allocated.
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kVariable = 64 * kMiB;
constexpr std::size_t kFirstStack = 8192;  // bytes of each thread; a device holds more than 100,000 threads
constexpr std::size_t kMoreStack = 2048;

// A module with a variable, with a kernel that uses it and with a kernel whose threads have a large stack.
std::string module_text(std::size_t stack) {
  return fmt::format(R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 variable[{}];
.visible .entry small(.param .u64 out, .param .u64 index) {{ ret; }}
.visible .entry uses_variable(.param .u64 out, .param .u64 index)
{{
  .reg .b64 %rd<4>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u64 %rd3, variable;
  ld.global.u32 %r1, [%rd3];
  st.global.u32 [%rd2], %r1;
  ret;
}}
.visible .entry large_stack(.param .u64 out, .param .u64 index)
{{
  .local .align 4 .b8 stack[{}];
  .reg .b64 %rd<6>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [index];
  cvta.to.global.u64 %rd3, %rd1;
  mov.u64 %rd4, stack;
  add.u64 %rd5, %rd4, %rd2;
  st.local.u32 [%rd5], 1;
  ld.local.u32 %r1, [%rd4];
  st.global.u32 [%rd3], %r1;
  ret;
}}
)",
                     kVariable, stack);
}

// A library whose kernels are not loaded yet, and graphs of kernels of another library. A device keeps the memory that
// it has once given to stacks, so each object of this class must have a larger stack than the one before.
class Kernels {
 public:
  Kernels(const Machine& machine, std::size_t stack)
      : machine_(machine),
        text_(module_text(stack)),
        out_(machine.allocate_plain(4096)),
        stream_(machine.make_stream()) {
    const Driver& cuda = machine.cuda;
    must(cuda.cuLibraryLoadData(&library_, text_.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    must(cuda.cuLibraryLoadData(&loaded_library_, text_.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    graph_ = graph_of(loaded("small"), &node_);
    must(cuda.cuGraphInstantiate(&executable_, graph_, 0));
    other_graph_ = graph_of(loaded("large_stack"), nullptr);
  }
  ~Kernels() {
    const Driver& cuda = machine_.cuda;
    cuda.cuGraphExecDestroy(executable_);
    cuda.cuGraphDestroy(graph_);
    cuda.cuGraphDestroy(other_graph_);
    cuda.cuLibraryUnload(library_);
    cuda.cuLibraryUnload(loaded_library_);
    cuda.cuStreamDestroy(stream_);
    cuda.cuMemFree(out_);
  }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  CUresult load_module() const {
    CUmodule module = nullptr;
    const CUresult result = machine_.cuda.cuModuleLoadData(&module, text_.c_str());
    if (result == CUDA_SUCCESS) must(machine_.cuda.cuModuleUnload(module));
    return result;
  }
  CUresult get_variable() const {
    CUdeviceptr at = 0;
    std::size_t bytes = 0;
    return machine_.cuda.cuLibraryGetGlobal(&at, &bytes, library_, "variable");
  }
  CUresult get_module() const {
    CUmodule module = nullptr;
    return machine_.cuda.cuLibraryGetModule(&module, library_);
  }
  CUresult get_function() const {
    CUfunction function = nullptr;
    return machine_.cuda.cuKernelGetFunction(&function, unloaded("uses_variable"));
  }
  CUresult ask_occupancy() const {
    int blocks = 0;
    return machine_.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, as_function("uses_variable"), 128, 0);
  }
  CUresult launch() const { return launch(as_function("uses_variable")); }
  CUresult launch_large_stack() const { return launch(loaded("large_stack")); }
  CUresult add_node() const {
    CUgraphNode node = nullptr;
    Parameters parameters(*this, nullptr, unloaded("uses_variable"));
    return machine_.cuda.cuGraphAddKernelNode(&node, other_graph_, nullptr, 0, &parameters.node);
  }
  CUresult instantiate() const {
    CUgraphExec executable = nullptr;
    const CUresult result = machine_.cuda.cuGraphInstantiate(&executable, other_graph_, 0);
    if (result == CUDA_SUCCESS) must(machine_.cuda.cuGraphExecDestroy(executable));
    return result;
  }
  CUresult set_node() const {
    Parameters parameters(*this, loaded("large_stack"), nullptr);
    return machine_.cuda.cuGraphExecKernelNodeSetParams(executable_, node_, &parameters.node);
  }
  CUresult update() const {
    CUgraphExecUpdateResultInfo info{};
    return machine_.cuda.cuGraphExecUpdate(executable_, other_graph_, &info);
  }

 private:
  struct Parameters {
    Parameters(const Kernels& of, CUfunction function, CUkernel kernel) : out(of.out_) {
      node.func = function;
      node.kern = kernel;
      node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1;
      node.kernelParams = values.data();
    }
    CUdeviceptr out;
    std::uint64_t index = 0;
    std::array<void*, 2> values{&out, &index};
    CUDA_KERNEL_NODE_PARAMS node{};
  };

  void must(CUresult result) const { machine_.must(result, "the preparation of a kernel"); }
  [[nodiscard]] CUkernel unloaded(const char* name) const {
    CUkernel kernel = nullptr;
    must(machine_.cuda.cuLibraryGetKernel(&kernel, library_, name));
    return kernel;
  }
  // A kernel in the place of a function: the driver loads it when it is first used.
  [[nodiscard]] CUfunction as_function(const char* name) const { return reinterpret_cast<CUfunction>(unloaded(name)); }
  [[nodiscard]] CUfunction loaded(const char* name) const {
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    must(machine_.cuda.cuLibraryGetKernel(&kernel, loaded_library_, name));
    must(machine_.cuda.cuKernelGetFunction(&function, kernel));
    return function;
  }
  CUresult launch(CUfunction function) const {
    Parameters parameters(*this, function, nullptr);
    return machine_.cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream_, parameters.values.data(), nullptr);
  }
  CUgraph graph_of(CUfunction function, CUgraphNode* node) const {
    CUgraph graph = nullptr;
    CUgraphNode added = nullptr;
    Parameters parameters(*this, function, nullptr);
    must(machine_.cuda.cuGraphCreate(&graph, 0));
    must(machine_.cuda.cuGraphAddKernelNode(&added, graph, nullptr, 0, &parameters.node));
    if (node != nullptr) *node = added;
    return graph;
  }

  const Machine& machine_;
  const std::string text_;
  const CUdeviceptr out_;
  const CUstream stream_;
  CUlibrary library_ = nullptr;
  CUlibrary loaded_library_ = nullptr;
  CUgraph graph_ = nullptr;
  CUgraphNode node_ = nullptr;
  CUgraphExec executable_ = nullptr;
  CUgraph other_graph_ = nullptr;
};

// A function that takes device memory, and how it is called.
struct TakingFunction {
  const char* name;
  CUresult (Kernels::*call)() const;
};
constexpr std::array<TakingFunction, 11> kTakingFunctions{
    TakingFunction{"cuModuleLoadData", &Kernels::load_module},
    TakingFunction{"cuLibraryGetGlobal", &Kernels::get_variable},
    TakingFunction{"cuLibraryGetModule", &Kernels::get_module},
    TakingFunction{"cuKernelGetFunction", &Kernels::get_function},
    TakingFunction{"cuOccupancyMaxActiveBlocksPerMultiprocessor of a kernel", &Kernels::ask_occupancy},
    TakingFunction{"cuLaunchKernel of a kernel", &Kernels::launch},
    TakingFunction{"cuLaunchKernel with a larger stack", &Kernels::launch_large_stack},
    TakingFunction{"cuGraphAddKernelNode of a kernel", &Kernels::add_node},
    TakingFunction{"cuGraphInstantiate with a larger stack", &Kernels::instantiate},
    TakingFunction{"cuGraphExecKernelNodeSetParams with a larger stack", &Kernels::set_node},
    TakingFunction{"cuGraphExecUpdate with a larger stack", &Kernels::update}};

// All memory of the device, from its default pool, which keeps what is freed.
class AllMemory {
 public:
  explicit AllMemory(const Machine& machine) : machine_(machine), stream_(machine.make_stream()) {
    machine.keep_all(machine.default_pool(), true);
    for (std::size_t bytes = kGiB; bytes >= kPage; bytes /= 2) {
      CUdeviceptr at = 0;
      while (machine.cuda.cuMemAllocAsync(&at, bytes, stream_) == CUDA_SUCCESS) pieces_.push_back(at);
    }
    machine.wait(stream_);
  }
  ~AllMemory() {
    free();
    machine_.cuda.cuStreamDestroy(stream_);
    machine_.keep_all(machine_.default_pool(), false);
    machine_.settle();
  }
  AllMemory(const AllMemory&) = delete;
  AllMemory& operator=(const AllMemory&) = delete;

  void free() {
    for (const CUdeviceptr at : pieces_) machine_.free(at, stream_);
    pieces_.clear();
    machine_.wait(stream_);
  }

 private:
  const Machine& machine_;
  const CUstream stream_;
  std::vector<CUdeviceptr> pieces_;
};

}  // namespace

void full_device(Machine& machine, Report& report, std::uint64_t) {
  if (!is_there(report, machine.cuda.cuLibraryLoadData, "kernels that are loaded when they are used")) return;
  const Smaller device(machine, 16 * kGiB);
  std::size_t stack = kFirstStack;
  for (const bool freed : {false, true}) {
    for (const TakingFunction& taking : kTakingFunctions) {
      const Kernels kernels(machine, stack += kMoreStack);
      AllMemory memory(machine);
      if (freed) memory.free();
      Answers answers(machine);
      answers.add((kernels.*taking.call)());
      answers.add(machine.cuda.cuCtxSynchronize());
      report.fact_at_least(
          fmt::format("{}: {}", freed ? "a pool keeps all memory" : "all memory is allocated", taking.name),
          answers.text());
    }
  }
}

}  // namespace stalloc::conformance
