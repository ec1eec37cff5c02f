// SPDX-License-Identifier: Apache-2.0
// stalloc-conformance: checks what CUDA promises of device memory, on a GPU or on simcuda, alone or under a preloaded
// library. Ends with one line of JSON. Exit status: 0 all checks passed, 1 one failed, 2 no CUDA, 3 a check hung.
#include <execinfo.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/conformance/checks.h"
#include "tests/conformance/leaving.h"
#include "tests/conformance/watchdog.h"

namespace {

using namespace stalloc::conformance;

struct Arguments {
  Road road = Road::Symbol;
  std::vector<std::string> only;
  std::uint64_t seed = 1;
  std::uint64_t rounds = 1;
  int limit_seconds = 120;
  bool list = false;
  std::string leave;
};

int parse(int argc, char** argv, Arguments& to) {
  CLI::App app{"What CUDA promises of device memory", "stalloc-conformance"};
  const std::map<std::string, Road> roads{
      {"symbol", Road::Symbol}, {"proc-address", Road::ProcAddress}, {"per-thread", Road::PerThread}};
  app.add_option("--road", to.road, "how CUDA's functions are found")->transform(CLI::CheckedTransformer(roads));
  app.add_option("--only", to.only, "names of checks; default: all but those that need a process of their own")
      ->delimiter(',');
  app.add_option("--seed", to.seed, "seed of the random programs");
  app.add_option("--rounds", to.rounds, "how many times all checks but the last run, each time with another seed");
  app.add_option("--limit", to.limit_seconds, "seconds that a check may take");
  app.add_flag("--list", to.list, "name the checks, with \"own process\" after those that need one");
  app.add_option("--leave", to.leave, "end within a request; used by the check hostile-leaving")->group("");
  CLI11_PARSE(app, argc, argv);
  return -1;
}

// Prints where the program crashed: a driver may crash on a machine where there is no debugger.
void print_stack(int signal) {
  void* frames[64];
  const int count = backtrace(frames, static_cast<int>(std::size(frames)));
  backtrace_symbols_fd(frames, count, 2);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const Check& check, const Arguments& arguments, std::uint64_t round, Machine& machine, Report& report) {
  const Watchdog watchdog(check.name, arguments.limit_seconds);
  report.begin(check.name);
  try {
    check.run(machine, report, arguments.seed * 1000 + round * 10);
  } catch (const std::exception& error) {
    report.expect(false, error.what());
  }
  report.end();
}

void require_known(const std::vector<std::string>& names) {
  const std::vector<Check>& checks = all_checks();
  for (const std::string& name : names) {
    const bool known =
        std::any_of(checks.begin(), checks.end(), [&](const Check& check) { return check.name == name; });
    if (!known) throw std::runtime_error("there is no check named " + name);
  }
}

bool wanted(const Check& check, const Arguments& arguments) {
  if (arguments.only.empty()) return !check.own_process;
  return std::find(arguments.only.begin(), arguments.only.end(), check.name) != arguments.only.end();
}

// The last check ends the context, so it is run once.
void run_all(const Arguments& arguments, Machine& machine, Report& report) {
  const std::vector<Check>& checks = all_checks();
  for (std::uint64_t round = 0; round < arguments.rounds; ++round) {
    for (const Check& check : checks) {
      const bool last = &check == &checks.back();
      if (wanted(check, arguments) && (!last || round + 1 == arguments.rounds)) {
        run(check, arguments, round, machine, report);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (const int status = parse(argc, argv, arguments); status >= 0) return status;
  if (arguments.list) {
    for (const Check& check : all_checks()) fmt::print("{}{}\n", check.name, check.own_process ? ": own process" : "");
    return 0;
  }
  std::signal(SIGSEGV, print_stack);
  try {
    require_known(arguments.only);
    const Driver driver = load_driver(arguments.road);
    if (!arguments.leave.empty()) leave_beside(driver, arguments.leave);
    Machine machine(driver);
    Report report;
    run_all(arguments, machine, report);
    fmt::print("{}\n", report.json());
    return report.passed() ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "stalloc-conformance: {}\n", error.what());
    return 2;
  }
}
