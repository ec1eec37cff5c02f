// SPDX-License-Identifier: Apache-2.0
// Requests for all that is free, then for half of it, and so on, as PyTorch makes them whenever cuDNN searches for the
// best algorithm.
#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"
#include "tests/conformance/tensors.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kNeededByDriver = 512 * kMiB;  // what a driver may need for itself when it gives out the rest
constexpr int kSearches = 8;
constexpr int kStepsBetween = 40;

struct Probe {
  const char* name;
  bool plain;
};

// Halves the request until it is served. Returns all answers.
std::string probe(const Machine& machine, const Probe& by, std::size_t bytes, CUstream stream) {
  Answers answers(machine);
  for (int halved = 0; halved < 6; ++halved, bytes /= 2) {
    CUdeviceptr at = 0;
    const CUresult result =
        answers.add(by.plain ? machine.cuda.cuMemAlloc(&at, bytes) : machine.cuda.cuMemAllocAsync(&at, bytes, stream));
    if (result != CUDA_SUCCESS) continue;
    answers.add(by.plain ? machine.cuda.cuMemFree(at) : machine.cuda.cuMemFreeAsync(at, stream));
    break;
  }
  machine.wait(stream);
  return answers.text();
}

// Work of the program between the probes: its tensors must survive them.
void work(Tensors& tensors, CUstream stream, std::size_t round) {
  for (std::size_t i = 0; i < kStepsBetween; ++i) {
    tensors.allocate((1 + (i * 7 + round) % 9) * kMiB, stream);
    if (tensors.live() > 25) tensors.free(tensors.nth(i % 20));
  }
}

void search_often(const Machine& machine, Report& report, const Probe& by, CUstream stream, bool keeps) {
  Ledger ledger;
  std::map<std::string, std::set<std::string>> answers;  // of all searches, by what was requested
  machine.settle();
  machine.keep_all(machine.default_pool(), keeps);
  {
    Tensors tensors(machine, report, ledger, 9 * kMiB, 1ULL << 56);
    for (std::size_t round = 0; round < kSearches; ++round) {
      work(tensors, stream, round);
      machine.wait(stream);
      answers[" of more than there is"].insert(probe(machine, by, machine.total_bytes() + kPage, stream));
      answers[" of three quarters of the device"].insert(probe(machine, by, machine.total_bytes() * 3 / 4, stream));
      if (machine.total_bytes() > 8 * kNeededByDriver) {
        answers[" of nearly all that is free"].insert(
            probe(machine, by, machine.free_bytes() - kNeededByDriver, stream));
      }
    }
    tensors.finish();
  }
  for (const auto& [what, all] : answers) {
    report.fact_at_least(fmt::format("with a release threshold of {}, {}{}, and halves of it",
                                     keeps ? "everything" : "nothing", by.name, what),
                         fmt::format("{}", fmt::join(all, "; in other searches: ")));
  }
  machine.settle();
  machine.keep_all(machine.default_pool(), false);
}

// Memory in pieces, freed on the stream that asks next, without a synchronization in between.
void whole_of_pieces(const Machine& machine, Report& report, CUstream stream, bool keeps) {
  machine.settle();
  machine.keep_all(machine.default_pool(), keeps);
  const std::size_t piece = machine.total_bytes() / 40 / kPage * kPage;
  Answers answers(machine);
  for (int round = 0; round < 3; ++round) {
    std::vector<CUdeviceptr> pieces;
    for (int i = 0; i < 30; ++i) pieces.push_back(machine.allocate(piece, stream));
    machine.wait(stream);
    Gate gate(machine, stream, kGateMs);  // so that the frees are surely pending
    for (const CUdeviceptr at : pieces) machine.free(at, stream);
    CUdeviceptr whole = 0;
    const std::size_t half = machine.total_bytes() / 2;
    if (answers.add(machine.cuda.cuMemAllocAsync(&whole, half, stream)) == CUDA_SUCCESS) {
      machine.fill(whole, kMiB, pattern_of(1), stream);
      machine.fill(whole + half - kMiB, kMiB, pattern_of(2), stream);
      answers.add(machine.cuda.cuMemFreeAsync(whole, stream));
    }
    gate.open();
    if (gate.timed_out()) answers.add_word("after waiting");
    machine.wait(stream);
  }
  report.fact_at_least(
      fmt::format("with a release threshold of {}, half of the device after pieces freed on the same stream",
                  keeps ? "everything" : "nothing"),
      answers.text());
  machine.settle();
  machine.keep_all(machine.default_pool(), false);
}

}  // namespace

void probes(Machine& machine, Report& report, std::uint64_t) {
  const Smaller device(machine, 32 * kGiB);
  const CUstream stream = machine.make_stream();
  for (const bool keeps : {false, true}) {
    for (const Probe& by : {Probe{"cuMemAllocAsync", false}, Probe{"cuMemAlloc", true}}) {
      search_often(machine, report, by, stream, keeps);
    }
    whole_of_pieces(machine, report, stream, keeps);
  }
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
