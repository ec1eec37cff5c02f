// SPDX-License-Identifier: Apache-2.0
// stalloc-replay: makes the calls of a recorded run again, on whatever driver is there, and checks every tensor.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "plan/files/trace_file.h"
#include "tests/replay/replay.h"

namespace {

using namespace stalloc;
using namespace stalloc::replay;

struct Arguments {
  std::string trace;
  std::string steps = "all";
  Options options;
  bool driver = false;
  bool json = false;
};

int parse(int argc, char** argv, Arguments& to) {
  const std::map<std::string, Verify> verify{{"off", Verify::Off}, {"stamps", Verify::Stamps}, {"full", Verify::Full}};
  const std::map<std::string, Streams> streams{
      {"non-blocking", Streams::NonBlocking}, {"blocking", Streams::Blocking}, {"legacy", Streams::Legacy}};
  CLI::App app{"Replays a recorded run and checks the contents of every tensor", "stalloc-replay"};
  app.add_option("trace", to.trace, "trace.fb")->required();
  app.add_option("--steps", to.steps, "all, or how many of the repeating steps after the prologue")
      ->check(CLI::IsMember({"all"}) | CLI::PositiveNumber);
  app.add_option("--verify", to.options.verify, "off, stamps (a word every 64 KiB; small tensors whole) or full")
      ->transform(CLI::CheckedTransformer(verify));
  app.add_option("--streams", to.options.streams, "what recorded streams become: non-blocking, blocking or legacy")
      ->transform(CLI::CheckedTransformer(streams));
  app.add_flag("--threads", to.options.threads, "make each recorded thread's calls from a thread of its own");
  app.add_option("--first-wait", to.options.first_wait, "the first call after which the program waits for its devices");
  app.add_option("--period", to.options.period, "it waits again after each so many calls (default: it never waits)");
  app.add_flag("--driver", to.driver, "call libcuda alone instead of the CUDA runtime");
  app.add_flag("--json", to.json, "print the summary as JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? -1 : 2;
  }
  return 0;
}

void print(const Result& result, bool json) {
  if (json) {
    fmt::print(
        "{{\"requests\": {}, \"skipped\": {}, \"verified\": {}, \"mismatches\": {}, \"overlaps\": {}, "
        "\"peak_live_bytes\": {}, \"physical_bytes\": {}, \"seconds\": {:.3f}}}\n",
        result.requests, result.skipped, result.verified, result.mismatches, result.overlaps, result.peak_live_bytes,
        result.physical_bytes, result.seconds);
    return;
  }
  fmt::print(
      "{} requests ({} skipped), {} tensors verified, {} mismatches, {} overlaps, peak live {} bytes, physical {} "
      "bytes, {:.1f} s\n",
      result.requests, result.skipped, result.verified, result.mismatches, result.overlaps, result.peak_live_bytes,
      result.physical_bytes, result.seconds);
}

int fail(const std::string& line) {
  fmt::print(stderr, "stalloc-replay: {}\n", line);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (const int status = parse(argc, argv, arguments)) return status < 0 ? 0 : status;
  const auto trace = trace::read_trace(arguments.trace, {.take_whole_chunks = true});
  if (!trace.ok()) return fail(trace.error);
  const auto api = Api::load(arguments.driver ? Api::Road::Driver : Api::Road::Runtime);
  if (!api.ok()) return fail(api.error);
  const std::size_t steps = arguments.steps == "all" ? 0 : std::stoul(arguments.steps);
  const Result result = replay::replay(api.value, make_schedule(trace.value, steps), arguments.options);
  for (const std::string& complaint : result.complaints) fmt::print(stderr, "stalloc-replay: {}\n", complaint);
  if (!result.error.empty()) return fail(result.error);
  print(result, arguments.json);
  return result.ok() ? 0 : 1;
}
