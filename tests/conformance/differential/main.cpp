// SPDX-License-Identifier: Apache-2.0
// stalloc-differential: random programs whose every answer is logged, so that two runs can be compared line by line.
// Exit status: 0 done, whatever the answers were; 2 no CUDA; 3 a program hung.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/differential/program.h"
#include "tests/conformance/watchdog.h"

namespace {

using namespace stalloc::conformance;

#ifdef STALLOC_LINKED
constexpr Origin kOrigin = Origin::Linked;
#else
constexpr Origin kOrigin = Origin::Opened;
#endif

struct Arguments {
  Road road = Road::Symbol;
  std::uint64_t first = 1;
  std::uint64_t count = 1;
  int limit_seconds = 60;
  bool resets = false;
  bool refusals = false;
  std::vector<std::string> without;
};

const std::vector<std::string> kKinds{"alone",      "captures", "contexts", "current-pool", "exhaustion", "figures",
                                      "impossible", "misuse",   "peers",    "questions",    "trims"};

int parse(int argc, char** argv, Arguments& to) {
  CLI::App app{"Random programs of device memory whose every answer is logged", "stalloc-differential"};
  const std::map<std::string, Road> roads{
      {"symbol", Road::Symbol}, {"proc-address", Road::ProcAddress}, {"per-thread", Road::PerThread}};
  app.add_option("--road", to.road, "how CUDA's functions are found")->transform(CLI::CheckedTransformer(roads));
  app.add_option("--first", to.first, "seed of the first program");
  app.add_option("--count", to.count, "number of programs; each has the next seed");
  app.add_option("--limit", to.limit_seconds, "seconds that a program may take");
  app.add_flag("--resets", to.resets, "reset primary contexts, too");
  app.add_flag("--refusals", to.refusals, "also make calls that a capture of the same thread forbids");
  app.add_option("--without", to.without, "kinds of calls to leave out")->delimiter(',')->check(CLI::IsMember(kKinds));
  CLI11_PARSE(app, argc, argv);
  return -1;
}

void find_devices(const Driver& driver, World& world) {
  int devices = 0;
  driver.cuDeviceGetCount(&devices);
  for (int device = 0; device < devices && device < 2; ++device) {
    world.machines.push_back(std::make_unique<Machine>(driver, device));
    const std::size_t total = world.machines.back()->total_bytes();
    world.total = device == 0 || total < world.total ? total : world.total;
  }
  int there = 0;
  int back = 0;
  if (world.machines.size() > 1) {
    driver.cuDeviceCanAccessPeer(&there, 0, 1);
    driver.cuDeviceCanAccessPeer(&back, 1, 0);
  }
  world.peers = there != 0 && back != 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (const int status = parse(argc, argv, arguments); status >= 0) return status;
  try {
    const Driver driver = load_driver(arguments.road, kOrigin);
    World world;
    world.refusals = arguments.refusals;
    world.without.insert(arguments.without.begin(), arguments.without.end());
    find_devices(driver, world);
    for (std::uint64_t i = 0; i < arguments.count; ++i) {
      const std::uint64_t seed = arguments.first + i;
      const Watchdog watchdog(fmt::format("program {}", seed), arguments.limit_seconds);
      run_program(world, {seed, arguments.resets}, stdout);
      std::fflush(stdout);
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "stalloc-differential: {}\n", error.what());
    return 2;
  }
}
