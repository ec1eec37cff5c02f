// stalloc-plan: turns a recorded run into a memory plan.
#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "tools/stalloc-plan/answer.h"
#include "tools/stalloc-plan/commands.h"
#include "tools/stalloc-plan/compare.h"
#include "tools/stalloc-plan/help.h"
#include "tools/stalloc-plan/report.h"

namespace stalloc::tool {
namespace {

constexpr const char* kDescription =
    "Plans the device memory of a recorded run.\n\n"
    "  stalloc record -- python train.py                # records trace.fb\n"
    "  stalloc-plan trace.fb -o plan.fb\n"
    "  stalloc run --plan plan.fb -- python train.py    # serves from the plan\n\n"
    "Many ranks: stalloc-plan trace.*.fb -o plans, then stalloc run --plan plans.\n\n"
    "TRACE may also be a CSV of requests with the columns id,lower,upper,size\n"
    "(MiniMalloc's format): it is planned over its whole range. Every plan is checked\n"
    "before it is written.\n";

constexpr std::uint64_t kLargestPage = std::uint64_t{1} << 40;

constexpr const char* kExitCodes =
    "\nExit codes: 0 done, 1 bad input or an unsound plan (one line on stderr says\nwhy), 2 wrong usage.";

int parse_and_run(int argc, char** argv) {
  CLI::App app{kDescription, "stalloc-plan"};
  app.footer(kExitCodes);
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", "stalloc-plan " STALLOC_VERSION);
  app.require_subcommand(0, 1);

  PlanCommand plan;
  bool dry_run = false;
  std::string summary = "text";
  ReadOptions read;
  const auto add_truncated = [&read](CLI::App& to) {
    to.add_flag("--accept-truncated", read.accept_truncated,
                "Take the whole chunks of a trace that stops inside one (a killed process may leave such a file)");
  };
  app.add_option("TRACE", plan.inputs, "The recorded run, or a CSV of requests; several: one a rank");
  app.add_option(
      "-o,--output", plan.output,
      "Where the plan goes (replaced only when the new one is complete); for several inputs a folder: trace.3.fb "
      "is planned into plan.3.fb");
  app.add_flag("--dry-run", dry_run, "Plan, check and summarise; write nothing (--summary without -o does the same)");
  const CLI::Option& summary_option =
      *app.add_option("--summary", summary, "Summary as text or json")->check(CLI::IsMember({"text", "json"}));
  app.add_option("--granularity", plan.options.granularity,
                 "Bytes of a physical page, with k, m or g for KiB, MiB, GiB (default: the recorded device's, else 2m)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--handle-cap", plan.options.handle_cap,
                 "The largest physical handle, in bytes (default: 6m, or a 2048th of the plan if that is more)")
      ->transform(CLI::AsSizeValue(false));
  std::string streams = "order";
  app.add_option("--streams", streams,
                 "order: memory freed on one stream may serve another, behind an event (default); "
                 "isolate: it never does")
      ->check(CLI::IsMember({"order", "isolate"}));
  app.add_flag("--whole-run", plan.options.whole_run,
               "Plan a recorded run as one piece, for a program that makes the very same requests again (default: the "
               "step that repeats; where none does, what lives through the run)");
  CLI::Option& contiguous =
      *app.add_flag("--contiguous", plan.options.contiguous,
                    "One piece of memory and no stitched views, for devices without VMM; the summary says how far "
                    "it is from the peak of live bytes, the least that any plan needs");
  app.add_option("--seconds", plan.options.contiguous_seconds,
                 "How long to improve a contiguous plan after the first rule, each device (default: 1)")
      ->check(CLI::Range(0.0, 1e6))
      ->needs(&contiguous);
  app.add_option("--capacity", plan.options.contiguous_capacity,
                 "Bytes that are good enough for a contiguous plan (default: as few as possible)")
      ->transform(CLI::AsSizeValue(false))
      ->needs(&contiguous);
  add_truncated(app);

  ShowCommand show;
  CLI::App& show_app = *app.add_subcommand("show", "Describe a trace, a plan or a CSV of requests");
  show_app.add_option("FILE", show.input, "The file")->required();
  show_app.add_flag("--json", show.json, "As JSON (docs/formats.md)");
  show_app.add_flag("--events", show.events, "Everything that a trace holds, as JSON (docs/formats.md)");
  add_truncated(show_app);

  CheckCommand check;
  CLI::App& check_app = *app.add_subcommand("check", "Say whether a plan is sound for a trace");
  check_app.add_option("TRACE", check.source, "The recorded run, or the CSV of requests")->required();
  check_app.add_option("PLAN", check.plan, "The plan")->required();
  add_truncated(check_app);

  CompareCommand compare;
  CLI::App& compare_app = *app.add_subcommand("compare", "Say what other allocators would hold for the same requests");
  compare_app.add_option("TRACE", compare.input, "The recorded run, or a CSV of requests")->required();
  compare_app.add_flag("--json", compare.json, "As JSON (docs/formats.md)");
  compare_app
      .add_option("--granularity", compare.granularity,
                  "Bytes of a physical page for stalloc (default: the recorded device's, else 2m)")
      ->transform(CLI::AsSizeValue(false));
  add_truncated(compare_app);

  ReportCommand report;
  CLI::App& report_app = *app.add_subcommand("report", "Print as JSON what `stalloc report` makes a page of");
  report_app.add_option("TRACE", report.input, "The recorded run, or a CSV of requests")->required();
  report_app.add_option("PLAN", report.plan, "A plan of this run (default: one is made)");
  add_truncated(report_app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help or version, on stdout
    return fail(std::string(error.what()) + " (stalloc-plan --help explains)", kExitUsage);
  }
  if (show_app.parsed()) {
    show.read = read;
    return run(show);
  }
  if (check_app.parsed()) {
    check.read = read;
    return run(check);
  }
  if (compare_app.parsed()) {
    compare.read = read;
    return run(compare);
  }
  if (report_app.parsed()) {
    report.read = read;
    return run(report);
  }
  if (plan.inputs.empty()) return fail("no trace given (stalloc-plan --help explains)", kExitUsage);
  if (dry_run && !plan.output.empty()) return fail("--dry-run writes nothing: leave -o out", kExitUsage);
  if (plan.output.empty() && !dry_run && summary_option.count() == 0) {
    return fail("where should the plan go? give -o FILE, or --dry-run for the summary alone", kExitUsage);
  }
  if (plan.options.granularity % plan::kUnitBytes != 0 || plan.options.granularity > kLargestPage) {
    return fail("--granularity must be a multiple of 512 bytes, and at most 1 TiB", kExitUsage);
  }
  plan.options.streams = streams == "isolate" ? plan::StreamMode::Isolate : plan::StreamMode::Order;
  plan.json = summary == "json";
  plan.read = read;
  return run(plan);
}

}  // namespace
}  // namespace stalloc::tool

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a plan that may not be written is an error in one line, and leaves nothing behind
  try {
    return stalloc::tool::parse_and_run(argc, argv);
  } catch (const std::bad_alloc&) {
    return stalloc::tool::fail("out of memory");
  } catch (const std::exception& error) {
    return stalloc::tool::fail(error.what());
  }
}
