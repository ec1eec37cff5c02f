// SPDX-License-Identifier: Apache-2.0
// stalloc-plan: turns a recorded run into a memory plan.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "tools/stalloc-plan/commands.h"
#include "tools/stalloc-plan/compare.h"
#include "tools/stalloc-plan/help.h"
#include "tools/stalloc-plan/output.h"
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

// The command line, and the command that it names.
class CommandLine {
 public:
  CommandLine() {
    app_.footer(kExitCodes);
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.set_version_flag("--version", "stalloc-plan " STALLOC_VERSION);
    app_.require_subcommand(0, 1);
    add_plan();
    add_contiguous();
    add_truncated(app_);
    add_show();
    add_check();
    add_compare();
    add_report();
  }

  // Runs the command. Returns the exit code.
  int run(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app_.exit(error);  // help or version, on stdout
      return fail(std::string(error.what()) + " (stalloc-plan --help explains)", kExitUsage);
    }
    if (show_app_->parsed()) return run_with_read(show_);
    if (check_app_->parsed()) return run_with_read(check_);
    if (compare_app_->parsed()) return run_with_read(compare_);
    if (report_app_->parsed()) return run_with_read(report_);
    const std::string wrong = why_not_to_plan();
    if (!wrong.empty()) return fail(wrong, kExitUsage);
    plan_.options.streams = streams_ == "isolate" ? plan::StreamMode::Isolate : plan::StreamMode::Order;
    plan_.json = summary_ == "json";
    return run_with_read(plan_);
  }

 private:
  template <class Command>
  int run_with_read(Command& command) {
    command.read = read_;
    return tool::run(command);
  }

  // Says what is wrong with a command line that names no subcommand; empty: nothing is.
  [[nodiscard]] std::string why_not_to_plan() const {
    if (plan_.inputs.empty()) return "no trace given (stalloc-plan --help explains)";
    if (dry_run_ && !plan_.output.empty()) return "--dry-run writes nothing: leave -o out";
    if (plan_.output.empty() && !dry_run_ && summary_option_->count() == 0) {
      return "where should the plan go? give -o FILE, or --dry-run for the summary alone";
    }
    if (plan_.output == "-") return "the summary goes to standard output: name a file for the plan";
    if (std::isnan(plan_.options.contiguous_seconds)) return "--seconds must be a number from 0 on";
    if (plan_.options.handle_cap != 0 &&
        plan_.options.handle_cap < std::max(plan_.options.granularity, plan::kUnitBytes)) {
      return "--handle-cap must be at least a page (--granularity says how large one is)";
    }
    if (plan_.options.granularity % plan::kUnitBytes != 0 || plan_.options.granularity > kLargestPage) {
      return "--granularity must be a multiple of 512 bytes, and at most 1 TiB";
    }
    return "";
  }

  void add_truncated(CLI::App& to) {
    to.add_flag("--accept-truncated", read_.accept_truncated,
                "Take the whole chunks of a trace that stops inside one (a killed process may leave such a file)");
  }

  void add_plan() {
    app_.add_option("TRACE", plan_.inputs, "The recorded run, or a CSV of requests; several: one a rank");
    app_.add_option(
        "-o,--output", plan_.output,
        "Where the plan goes (replaced only when the new one is complete); for several inputs a folder: the plan of "
        "rank 3 is plan.3.fb");
    app_.add_flag("--dry-run", dry_run_,
                  "Plan, check and summarise; write nothing (--summary without -o does the same)");
    summary_option_ =
        app_.add_option("--summary", summary_, "Summary as text or json")->check(CLI::IsMember({"text", "json"}));
    app_.add_option(
            "--granularity", plan_.options.granularity,
            "Bytes of a physical page, with k, m or g for KiB, MiB, GiB (default: the recorded device's, else 2m)")
        ->transform(CLI::AsSizeValue(false));
    app_.add_option("--handle-cap", plan_.options.handle_cap,
                    "The largest physical handle, in bytes (default: 6m, or a 2048th of the plan if that is more)")
        ->transform(CLI::AsSizeValue(false));
    app_.add_option("--streams", streams_,
                    "order: memory freed on one stream may serve another, behind an event (default); "
                    "isolate: it never does")
        ->check(CLI::IsMember({"order", "isolate"}));
    app_.add_flag(
        "--whole-run", plan_.options.whole_run,
        "Plan a recorded run as one piece, for a program that makes the very same requests again (default: the "
        "step that repeats; where none does, what lives through the run)");
  }

  void add_contiguous() {
    CLI::Option& contiguous =
        *app_.add_flag("--contiguous", plan_.options.contiguous,
                       "One piece of memory and no stitched views, for devices without VMM; the summary says how far "
                       "it is from the peak of live bytes, the least that any plan needs");
    app_.add_option("--seconds", plan_.options.contiguous_seconds,
                    "How long to improve a contiguous plan after the first rule, each device (default: 1)")
        ->check(CLI::Range(0.0, 1e6))
        ->needs(&contiguous);
    app_.add_option("--capacity", plan_.options.contiguous_capacity,
                    "Bytes that are good enough for a contiguous plan (default: as few as possible)")
        ->transform(CLI::AsSizeValue(false))
        ->needs(&contiguous);
  }

  void add_show() {
    show_app_ = app_.add_subcommand("show", "Describe a trace, a plan or a CSV of requests");
    show_app_->add_option("FILE", show_.input, "The file")->required();
    show_app_->add_flag("--json", show_.json, "As JSON (docs/formats.md)");
    show_app_->add_flag("--events", show_.events, "Everything that a trace holds, as JSON (docs/formats.md)");
    add_truncated(*show_app_);
  }

  void add_check() {
    check_app_ = app_.add_subcommand("check", "Say whether a plan is sound for a trace");
    check_app_->add_option("TRACE", check_.source, "The recorded run, or the CSV of requests")->required();
    check_app_->add_option("PLAN", check_.plan, "The plan")->required();
    add_truncated(*check_app_);
  }

  void add_compare() {
    compare_app_ = app_.add_subcommand("compare", "Say what other allocators would hold for the same requests");
    compare_app_->add_option("TRACE", compare_.input, "The recorded run, or a CSV of requests")->required();
    compare_app_->add_flag("--json", compare_.json, "As JSON (docs/formats.md)");
    compare_app_
        ->add_option("--granularity", compare_.granularity,
                     "Bytes of a physical page for stalloc (default: the recorded device's, else 2m)")
        ->transform(CLI::AsSizeValue(false));
    add_truncated(*compare_app_);
  }

  void add_report() {
    report_app_ = app_.add_subcommand("report", "Print as JSON what `stalloc report` makes a page of");
    report_app_->add_option("TRACE", report_.input, "The recorded run, or a CSV of requests")->required();
    report_app_->add_option("PLAN", report_.plan, "A plan of this run (default: one is made)");
    add_truncated(*report_app_);
  }

  CLI::App app_{kDescription, "stalloc-plan"};
  ReadOptions read_;

  PlanCommand plan_;
  bool dry_run_ = false;
  std::string summary_ = "text";
  std::string streams_ = "order";
  CLI::Option* summary_option_ = nullptr;

  CLI::App* show_app_ = nullptr;
  ShowCommand show_;
  CLI::App* check_app_ = nullptr;
  CheckCommand check_;
  CLI::App* compare_app_ = nullptr;
  CompareCommand compare_;
  CLI::App* report_app_ = nullptr;
  ReportCommand report_;
};

}  // namespace
}  // namespace stalloc::tool

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a plan that may not be written is an error in one line, and leaves nothing behind
  try {
    return stalloc::tool::CommandLine().run(argc, argv);
  } catch (const std::bad_alloc&) {
    return stalloc::tool::fail("out of memory");
  } catch (const std::exception& error) {
    return stalloc::tool::fail(error.what());
  }
}
