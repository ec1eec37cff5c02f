// SPDX-License-Identifier: Apache-2.0
// Two devices: copies between them with and without access, streams of one that order and free the memory of the other,
// and frees while the other one still writes.
#include <string>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kCopiedBytes = 5 * kMiB + 4096;  // ends inside a page

// A device with two streams.
class Side {
 public:
  Side(const Driver& driver, CUdevice device) : machine(driver, device), stream(machine.make_stream()) {
    machine.must(machine.cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    other = machine.make_stream();
    created_pool = machine.make_pool();
  }
  ~Side() {
    if (machine.cuda.cuCtxSetCurrent(context) != CUDA_SUCCESS) return;
    machine.cuda.cuCtxSynchronize();
    machine.cuda.cuMemPoolDestroy(created_pool);
    for (const CUstream each : {stream, other}) machine.cuda.cuStreamDestroy(each);
    machine.cuda.cuDevicePrimaryCtxRelease(machine.device);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void enter() const { machine.join(); }

  // Gives another device access to all memory of this one. Returns the answers to the calls, for the contexts and both
  // pools.
  std::string open_to(const Side& peer) const {
    Answers answers(machine);
    peer.enter();
    answers.add(machine.cuda.cuCtxEnablePeerAccess(context, 0));
    enter();
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, peer.machine.device},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    for (const CUmemoryPool pool : {machine.default_pool(), created_pool}) {
      answers.add(machine.cuda.cuMemPoolSetAccess(pool, &access, 1));
    }
    return answers.text();
  }

  Machine machine;
  CUstream stream;
  CUstream other = nullptr;
  CUcontext context = nullptr;
  CUmemoryPool created_pool = nullptr;
};

enum class CopiedMemory { Plain, Default, Created };

std::string words_of(CopiedMemory kind) {
  if (kind == CopiedMemory::Plain) return "cuMemAlloc's memory";
  return kind == CopiedMemory::Default ? "the default pool's memory" : "a created pool's memory";
}

CUdeviceptr allocate(const Side& side, CopiedMemory kind, CUstream stream) {
  side.enter();
  if (kind == CopiedMemory::Plain) return side.machine.allocate_plain(kCopiedBytes);
  if (kind == CopiedMemory::Default) return side.machine.allocate(kCopiedBytes, stream);
  CUdeviceptr at = 0;
  side.machine.must(side.machine.cuda.cuMemAllocFromPoolAsync(&at, kCopiedBytes, side.created_pool, stream),
                    "cuMemAllocFromPoolAsync");
  return at;
}

CUdeviceptr allocate_filled(const Side& side, CopiedMemory kind, CUstream stream, std::uint32_t pattern) {
  const CUdeviceptr at = allocate(side, kind, stream);
  side.machine.fill(at, kCopiedBytes, pattern, stream);
  return at;
}

void free(const Side& side, CopiedMemory kind, CUdeviceptr at) {
  side.enter();
  if (kind == CopiedMemory::Plain) {
    side.machine.free_plain(at);
  } else {
    side.machine.free(at, side.stream);
    side.machine.wait(side.stream);
  }
}

// Makes work that is queued on `later` from now on wait for what is queued on `earlier`, a stream of another device.
void order(const Side& first, CUstream earlier, const Side& second, CUstream later) {
  CUevent event = nullptr;
  first.enter();
  first.machine.must(first.machine.cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  first.machine.must(first.machine.cuda.cuEventRecord(event, earlier), "cuEventRecord");
  second.enter();
  second.machine.must(second.machine.cuda.cuStreamWaitEvent(later, event, 0), "cuStreamWaitEvent");
  first.enter();
  first.machine.must(first.machine.cuda.cuEventDestroy(event), "cuEventDestroy");
}

bool has(const Side& side, CUdeviceptr at, CUstream stream, std::uint32_t pattern) {
  side.enter();
  const Pinned host(side.machine, kCopiedBytes);
  side.machine.read(host.data(), at, kCopiedBytes, stream);
  side.machine.wait(stream);
  return holds(host.data(), kCopiedBytes, pattern);
}

std::string try_copy(const Side& from, CUdeviceptr source, const Side& to, CUdeviceptr target, const Side& by,
                     std::uint32_t pattern) {
  const Driver& cuda = by.machine.cuda;
  Answers answers(by.machine);
  from.enter();
  from.machine.fill(source, kCopiedBytes, pattern, from.stream);
  order(from, from.stream, by, by.stream);
  by.enter();
  answers.add(cuda.cuMemcpyPeerAsync(target, to.context, source, from.context, kCopiedBytes, by.stream));
  order(by, by.stream, to, to.stream);
  answers.add_word(has(to, target, to.stream, pattern) ? "the data are right" : "the data are wrong");
  from.enter();
  from.machine.fill(source, kCopiedBytes, pattern + 1, from.stream);
  from.machine.wait(from.stream);
  by.enter();
  answers.add(cuda.cuMemcpyPeer(target, to.context, source, from.context, kCopiedBytes));
  answers.add(cuda.cuCtxSynchronize());
  answers.add_word(has(to, target, to.stream, pattern + 1) ? "the data are right" : "the data are wrong");
  return answers.text();
}

void try_copies(Report& report, const Side& first, const Side& second, const std::string& access) {
  std::uint64_t copies = 0;
  for (const CopiedMemory kind : {CopiedMemory::Plain, CopiedMemory::Default, CopiedMemory::Created}) {
    const CUdeviceptr here = allocate(first, kind, first.stream);
    const CUdeviceptr there = allocate(second, kind, second.stream);
    const std::string what = words_of(kind) + ", " + access;
    report.fact("to the second device, by its stream, " + what,
                try_copy(first, here, second, there, second, pattern_of(++copies)));
    report.fact("to the second device, by the first one's stream, " + what,
                try_copy(first, here, second, there, first, pattern_of(++copies)));
    report.fact("to the first device, by its stream, " + what,
                try_copy(second, there, first, here, first, pattern_of(++copies)));
    free(first, kind, here);
    free(second, kind, there);
  }
}

// Copies by unified addressing, as cudaMemcpyAsync does: the driver itself finds out where the memory is.
void try_unified_copies(Report& report, const Side& first, const Side& second) {
  for (const CopiedMemory kind : {CopiedMemory::Plain, CopiedMemory::Default, CopiedMemory::Created}) {
    const CUdeviceptr here = allocate_filled(first, kind, first.stream, pattern_of(50));
    const CUdeviceptr there = allocate(second, kind, second.stream);
    order(first, first.stream, second, second.stream);
    second.enter();
    Answers answers(second.machine);
    answers.add(second.machine.cuda.cuMemcpyDtoDAsync(there, here, kCopiedBytes, second.stream));
    answers.add_word(has(second, there, second.stream, pattern_of(50)) ? "the data are right" : "the data are wrong");
    report.fact("by unified addressing, with access, " + words_of(kind), answers.text());
    free(first, kind, here);
    free(second, kind, there);
  }
}

bool are_there(Machine& machine, Report& report) {
  int devices = 0;
  int can = 0;
  machine.must(machine.cuda.cuDeviceGetCount(&devices), "cuDeviceGetCount");
  if (devices > 1) machine.must(machine.cuda.cuDeviceCanAccessPeer(&can, 1, 0), "cuDeviceCanAccessPeer");
  report.fact("a second device that can reach the first one's memory", can != 0 ? "there" : "not there");
  return can != 0 && is_there(report, machine.cuda.cuMemcpyPeerAsync, "cuMemcpyPeerAsync") &&
         is_there(report, machine.cuda.cuMemcpyPeer, "cuMemcpyPeer");
}

// The second device writes to memory that the first one frees behind that write. What the first one allocates then may
// use the bytes only behind the write.
void free_behind_a_write(Report& report, const Side& first, const Side& second, CopiedMemory kind) {
  const CUdeviceptr written = allocate_filled(first, kind, first.stream, pattern_of(1));
  order(first, first.stream, second, second.stream);
  second.enter();
  Gate gate(second.machine, second.stream, kGateMs);
  second.machine.fill(written, kCopiedBytes, pattern_of(2), second.stream);
  order(second, second.stream, first, first.stream);
  first.machine.free(written, first.stream);
  std::vector<CUdeviceptr> later;
  const std::vector<CUstream> streams{first.other, first.stream, first.other};
  for (std::size_t i = 0; i < streams.size(); ++i) {
    later.push_back(allocate_filled(first, kind, streams[i], pattern_of(3 + i)));
  }
  gate.open();
  for (std::size_t i = 0; i < later.size(); ++i) {
    report.expect(has(first, later[i], streams[i], pattern_of(3 + i)),
                  words_of(kind) + " was given out again before the second device had written to it");
    first.machine.free(later[i], streams[i]);
  }
}

// The second device's stream writes to the memory and frees it.
void free_on_the_other_stream(Report& report, const Side& first, const Side& second, CopiedMemory kind) {
  const CUdeviceptr written = allocate_filled(first, kind, first.stream, pattern_of(11));
  order(first, first.stream, second, second.stream);
  second.enter();
  Gate gate(second.machine, second.stream, kGateMs);
  second.machine.fill(written, kCopiedBytes, pattern_of(12), second.stream);
  const CUresult freed = second.machine.cuda.cuMemFreeAsync(written, second.stream);
  report.fact("freeing " + words_of(kind) + " on a stream of the second device", second.machine.name(freed));
  const CUdeviceptr later = allocate_filled(first, kind, first.stream, pattern_of(13));
  gate.open();
  report.expect(has(first, later, first.stream, pattern_of(13)),
                words_of(kind) + " was given out again before the second device's stream had freed it");
  first.machine.free(later, first.stream);
  if (freed != CUDA_SUCCESS) first.machine.free(written, first.stream);
  second.enter();
  second.machine.wait(second.stream);
}

// The first device's stream reads what the second device's stream writes late.
void order_between(Report& report, const Side& first, const Side& second, CopiedMemory kind) {
  const CUdeviceptr there = allocate_filled(second, kind, second.stream, pattern_of(21));
  const CUdeviceptr here = allocate_filled(first, kind, first.stream, pattern_of(22));
  second.enter();
  Gate gate(second.machine, second.stream, kGateMs);
  second.machine.fill(there, kCopiedBytes, pattern_of(23), second.stream);
  order(second, second.stream, first, first.stream);
  first.enter();
  first.machine.must(
      first.machine.cuda.cuMemcpyPeerAsync(here, first.context, there, second.context, kCopiedBytes, first.stream),
      "cuMemcpyPeerAsync");
  gate.open();
  report.expect(has(first, here, first.stream, pattern_of(23)), words_of(kind) + " was copied before it was written");
  free(first, kind, here);
  free(second, kind, there);
}

}  // namespace

void peer_copies(Machine& machine, Report& report, std::uint64_t) {
  if (!are_there(machine, report)) return;
  {
    const Side first(machine.cuda, 0);
    const Side second(machine.cuda, 1);
    try_copies(report, first, second, "without access");
    report.fact("access of the second device to the first one", first.open_to(second));
    report.fact("access of the first device to the second one", second.open_to(first));
    try_copies(report, first, second, "with access");
    try_unified_copies(report, first, second);
  }
  machine.join();
}

void peer_frees(Machine& machine, Report& report, std::uint64_t) {
  if (!are_there(machine, report)) return;
  {
    const Side first(machine.cuda, 0);
    const Side second(machine.cuda, 1);
    first.open_to(second);
    second.open_to(first);
    for (int round = 0; round < 3; ++round) {
      for (const CopiedMemory kind : {CopiedMemory::Default, CopiedMemory::Created}) {
        free_behind_a_write(report, first, second, kind);
        free_on_the_other_stream(report, first, second, kind);
        order_between(report, first, second, kind);
      }
    }
    order_between(report, first, second, CopiedMemory::Plain);
  }
  machine.join();
}

// Whether cuMemFree waits for another device that is about to write. Where it does not, that device would write to
// memory that is gone or belongs to somebody else. That is the program's fault, and nothing more is asked.
void peer_plain_free(Machine& machine, Report& report, std::uint64_t) {
  if (!are_there(machine, report)) return;
  {
    const Side first(machine.cuda, 0);
    const Side second(machine.cuda, 1);
    first.open_to(second);
    const CUdeviceptr written = allocate_filled(first, CopiedMemory::Plain, first.stream, pattern_of(1));
    first.machine.wait(first.stream);
    second.enter();
    Gate gate(second.machine, second.stream, kGateMs);
    second.machine.fill(written, kCopiedBytes, pattern_of(2), second.stream);
    first.enter();
    Answers answers(machine);
    answers.add(machine.cuda.cuMemFree(written));
    second.enter();
    const bool is_over = answers.add(machine.cuda.cuStreamQuery(second.stream)) == CUDA_SUCCESS;
    if (is_over) {
      const CUdeviceptr later = allocate_filled(first, CopiedMemory::Plain, first.stream, pattern_of(3));
      report.expect(has(first, later, first.stream, pattern_of(3)),
                    "memory allocated behind a cuMemFree was written to");
      first.machine.free_plain(later);
    }
    gate.open();
    report.fact("cuMemFree while the second device is about to write, and that device's stream then", answers.text());
  }
  machine.join();
}

}  // namespace stalloc::conformance
