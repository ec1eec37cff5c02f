// SPDX-License-Identifier: Apache-2.0
// What CUDA says about pointers into device memory, while it is live and after it was freed.
#include <fmt/format.h>

#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kBlockBytes = 5 * kPage + 512;

// Large enough for whatever the driver writes.
union Value {
  std::uint64_t number;
  std::uint32_t half;
  bool truth;
  CUdeviceptr address;
  CUcontext context;
  CUmemoryPool pool;
  CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
  unsigned char bytes[64];
};

// The block to which a pointer belongs, for comparison.
struct Block {
  CUdeviceptr base = 0;
  CUdeviceptr at = 0;
  CUcontext context = nullptr;
  CUmemoryPool pool = nullptr;
};

struct Attribute {
  const char* name;
  CUpointer_attribute which;
  // Describes the value in words that are the same wherever the memory lies. Null: only the result code can be
  // compared.
  std::function<std::string(const Value&, const Block&)> describe;
};

std::string is(bool so) { return so ? "as it should be" : "something else"; }

std::vector<Attribute> attributes() {
  const auto number = [](const Value& value, const Block&) { return std::to_string(value.half); };
  return {
      {"CONTEXT", CU_POINTER_ATTRIBUTE_CONTEXT,
       [](const Value& value, const Block& block) {
         return std::string(value.context == nullptr         ? "null"
                            : value.context == block.context ? "the current one"
                                                             : "another one");
       }},
      {"MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, number},
      {"DEVICE_POINTER", CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
       [](const Value& value, const Block& block) { return is(value.address == block.at); }},
      {"HOST_POINTER", CU_POINTER_ATTRIBUTE_HOST_POINTER, nullptr},
      {"P2P_TOKENS", CU_POINTER_ATTRIBUTE_P2P_TOKENS, nullptr},
      {"SYNC_MEMOPS", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, number},
      {"BUFFER_ID", CU_POINTER_ATTRIBUTE_BUFFER_ID,
       [](const Value& value, const Block&) { return std::string(value.number == 0 ? "0" : "a number"); }},
      {"IS_MANAGED", CU_POINTER_ATTRIBUTE_IS_MANAGED, number},
      {"DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, number},
      {"IS_LEGACY_CUDA_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, number},
      {"RANGE_START_ADDR", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
       [](const Value& value, const Block& block) { return is(value.address == block.base); }},
      {"RANGE_SIZE", CU_POINTER_ATTRIBUTE_RANGE_SIZE,
       [](const Value& value, const Block&) { return std::to_string(value.number); }},
      {"MAPPED", CU_POINTER_ATTRIBUTE_MAPPED, number},
      {"ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, number},
      {"IS_GPU_DIRECT_RDMA_CAPABLE", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, number},
      {"ACCESS_FLAGS", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, number},
      {"MEMPOOL_HANDLE", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
       [](const Value& value, const Block& block) {
         return std::string(value.pool == nullptr ? "none" : value.pool == block.pool ? "its pool" : "another pool");
       }},
      {"MAPPING_SIZE", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, nullptr},
      {"MAPPING_BASE_ADDR", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, nullptr},
      {"MEMORY_BLOCK_ID", CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, nullptr},
      {"no such attribute", static_cast<CUpointer_attribute>(999), nullptr},
  };
}

std::string ask(const Machine& machine, const Attribute& attribute, const Block& block) {
  Value value{};
  const CUresult result = machine.cuda.cuPointerGetAttribute(&value, attribute.which, block.at);
  if (result != CUDA_SUCCESS || !attribute.describe) return machine.name(result);
  return attribute.describe(value, block);
}

void say_all(const Machine& machine, Report& report, const Block& block, const std::string& what) {
  for (const Attribute& attribute : attributes()) {
    report.fact(fmt::format("{} of {}", attribute.name, what), ask(machine, attribute, block));
  }
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const CUresult range = machine.cuda.cuMemGetAddressRange(&base, &bytes, block.at);
  report.fact("the address range of " + what,
              range != CUDA_SUCCESS ? machine.name(range)
                                    : fmt::format("{} bytes, its beginning {}", bytes, is(base == block.base)));
  // Asked together, a pointer that CUDA does not know is no error: its attributes are zero.
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  Value values[4] = {};
  void* answers[] = {&values[0], &values[1], &values[2], &values[3]};
  const CUresult together = machine.cuda.cuPointerGetAttributes(4, which, answers, block.at);
  report.fact("four attributes together of " + what,
              fmt::format("{}, context {}, beginning {}, {} bytes", machine.name(together),
                          values[0].context == nullptr ? "null" : is(values[0].context == block.context),
                          values[1].address == 0 ? "null" : is(values[1].address == block.base), values[2].number));
}

std::uint64_t buffer_id(const Machine& machine, CUdeviceptr at) {
  Value value{};
  machine.must(machine.cuda.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, at), "BUFFER_ID");
  return value.number;
}

// A kind of memory.
struct KindOfMemory {
  const char* name;
  std::function<CUdeviceptr()> allocate;
  std::function<void(CUdeviceptr)> free;  // and waits for the stream
  CUmemoryPool pool;
};

void buffer_ids(const Machine& machine, Report& report, const KindOfMemory& kind) {
  Value asked{};
  const CUdeviceptr first = kind.allocate();
  const CUdeviceptr second = kind.allocate();
  const CUresult result = machine.cuda.cuPointerGetAttribute(&asked, CU_POINTER_ATTRIBUTE_BUFFER_ID, first);
  if (result == CUDA_SUCCESS) {
    const std::uint64_t id = buffer_id(machine, first);
    report.fact(fmt::format("two blocks of {} have different buffer ids", kind.name),
                yes_or_no(id != buffer_id(machine, second)));
    report.fact(fmt::format("all of a block of {} has one buffer id", kind.name),
                yes_or_no(id == buffer_id(machine, first + 512) && id == buffer_id(machine, first + kBlockBytes - 1)));
    kind.free(first);
    const CUdeviceptr third = kind.allocate();
    report.fact(fmt::format("a block of {} made after a free has a new buffer id", kind.name),
                yes_or_no(id != buffer_id(machine, third)));
    kind.free(third);
  } else {
    report.fact(fmt::format("buffer ids of {}", kind.name), machine.name(result));
    kind.free(first);
  }
  kind.free(second);
}

void synchronous_operations(const Machine& machine, Report& report, const KindOfMemory& kind) {
  if (!is_there(report, machine.cuda.cuPointerSetAttribute, "cuPointerSetAttribute")) return;
  const CUdeviceptr at = kind.allocate();
  unsigned wanted = 1;
  const CUresult set = machine.cuda.cuPointerSetAttribute(&wanted, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
  Value value{};
  const CUresult asked = machine.cuda.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
  report.fact(fmt::format("setting SYNC_MEMOPS of {}, and what it is then", kind.name),
              fmt::format("{}, {} {}", machine.name(set), machine.name(asked), value.half));
  unsigned none = 0;
  report.fact(fmt::format("setting another attribute of {}", kind.name),
              machine.name(machine.cuda.cuPointerSetAttribute(&none, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at)));
  kind.free(at);
}

// Communication libraries register the address range together with its handle or its descriptor: they must be of the
// same memory.
void registration(const Machine& machine, Report& report, const KindOfMemory& kind) {
  const Driver& cuda = machine.cuda;
  const CUdeviceptr at = kind.allocate();
  if (is_there(report, cuda.cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle")) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult retained = cuda.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(at));
    report.fact(fmt::format("cuMemRetainAllocationHandle of {}", kind.name), machine.name(retained));
    if (retained == CUDA_SUCCESS) {
      CUdeviceptr base = 0;
      std::size_t bytes = 0;
      machine.must(cuda.cuMemGetAddressRange(&base, &bytes, at), "cuMemGetAddressRange");
      Value mapped{};
      const CUresult asked = cuda.cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at);
      report.fact(fmt::format("the address range of {} is what its handle is of", kind.name),
                  asked != CUDA_SUCCESS ? machine.name(asked) : yes_or_no(mapped.number == bytes));
      machine.must(cuda.cuMemRelease(handle), "cuMemRelease");
    }
  }
  if (is_there(report, cuda.cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange")) {
    int descriptor = -1;
    const CUresult got =
        cuda.cuMemGetHandleForAddressRange(&descriptor, at, kPage, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    report.fact(fmt::format("a dma-buf descriptor of {}", kind.name), machine.name(got));
    if (got == CUDA_SUCCESS) ::close(descriptor);
  }
  kind.free(at);
}

}  // namespace

void pointer_attributes(Machine& machine, Report& report, std::uint64_t) {
  const CUstream stream = machine.make_stream();
  const CUmemoryPool own = machine.make_pool();
  CUcontext current = nullptr;
  machine.must(machine.cuda.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  const auto free_ordered = [&](CUdeviceptr at) {
    machine.free(at, stream);
    machine.wait(stream);
  };
  const auto allocate_own = [&] {
    CUdeviceptr at = 0;
    machine.must(machine.cuda.cuMemAllocFromPoolAsync(&at, kBlockBytes, own, stream), "cuMemAllocFromPoolAsync");
    machine.wait(stream);
    return at;
  };
  const std::vector<KindOfMemory> kinds{{"stream-ordered memory",
                                         [&] {
                                           const CUdeviceptr at = machine.allocate(kBlockBytes, stream);
                                           machine.wait(stream);
                                           return at;
                                         },
                                         free_ordered, machine.default_pool()},
                                        {"a created pool's memory", allocate_own, free_ordered, own},
                                        {"cuMemAlloc's memory", [&] { return machine.allocate_plain(kBlockBytes); },
                                         [&](CUdeviceptr at) { machine.free_plain(at); }, nullptr}};
  for (const KindOfMemory& kind : kinds) {
    const CUdeviceptr base = kind.allocate();
    for (const std::size_t offset : {std::size_t{0}, kBlockBytes / 2, kBlockBytes - 1}) {
      say_all(machine, report, {base, base + offset, current, kind.pool},
              fmt::format("{}, {}", kind.name,
                          offset == 0                 ? "its first byte"
                          : offset == kBlockBytes - 1 ? "its last byte"
                                                      : "its middle"));
    }
    kind.free(base);
    machine.settle();
    say_all(machine, report, {base, base, current, kind.pool}, fmt::format("{}, after its free", kind.name));
    buffer_ids(machine, report, kind);
    synchronous_operations(machine, report, kind);
    registration(machine, report, kind);
  }
  std::uint64_t on_stack = 0;
  const auto here = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(&on_stack));
  say_all(machine, report, {here, here, current, nullptr}, "memory of the host that CUDA does not know");
  say_all(machine, report, {0, 0, current, nullptr}, "null");
  machine.must(machine.cuda.cuMemPoolDestroy(own), "cuMemPoolDestroy");
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
