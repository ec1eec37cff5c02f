// SPDX-License-Identifier: Apache-2.0
// stalloc-plan: turns a recorded run into a memory plan.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <string_view>

#include "plan/files/file_io.h"
#include "plan/size_text.h"
#include "tools/stalloc-plan/commands.h"
#include "tools/stalloc-plan/compare.h"
#include "tools/stalloc-plan/help.h"
#include "tools/stalloc-plan/output.h"
#include "tools/stalloc-plan/report.h"

namespace stalloc::tool {
namespace {

// `stalloc plan`, `show`, `check` and `compare` become this program, which is then called by these names.
constexpr std::string_view kFrontEnd = "stalloc ";
constexpr std::string_view kPlanOfFrontEnd = "stalloc plan";

// Ends the process as the signal alone would, but leaves no file behind that is written in part.
void end_by(int signal) {
  plan::remove_unfinished_files();
  std::signal(signal, SIG_DFL);
  (void)::raise(signal);
}

// Handles the signals by which a person or a job's manager ends the program, unless it was started to ignore them.
void leave_no_unfinished_files() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    if (std::signal(signal, end_by) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

bool is_front_end(std::string_view called) { return called.starts_with(kFrontEnd); }

// What the user calls the program, of which `called` is the first argument.
std::string name_of(std::string_view called) {
  if (called == kPlanOfFrontEnd) return std::string(called);
  return is_front_end(called) ? "stalloc" : "stalloc-plan";
}

// The description of the program that is called `name`.
std::string description_of(const std::string& name) {
  return fmt::format(
      "Plans the device memory of a recorded run.\n\n"
      "  stalloc record -- python train.py                # records trace.fb\n"
      "  {0} trace.fb -o plan.fb\n"
      "  stalloc run --plan plan.fb -- python train.py    # serves from the plan\n\n"
      "Several ranks: {0} trace.*.fb -o plans; then stalloc run --plan plans\n\n"
      "TRACE may also be a CSV of requests with the columns id,lower,upper,size\n"
      "(MiniMalloc's format), all of which are planned. Every plan is checked before it\n"
      "is written.\n",
      name);
}

// An option that all commands have.
constexpr const char* kAcceptTruncated = "accept-truncated";

constexpr const char* kExitCodes =
    "\nExit codes: 0 done, 1 bad input or an unsound plan (one line on stderr says\nwhy), 2 wrong usage.";

// Replaces a size, as users write it, by its bytes. CLI11's own conversion takes a negative number for a large one.
const CLI::Validator kSize(
    [](std::string& size) {
      const auto bytes = plan::parse_size(size);
      if (!bytes) return fmt::format("'{}' is no size: bytes, or a number with k, m, g or t", size);
      size = std::to_string(*bytes);
      return std::string();
    },
    "");
// Refuses a size of 0, which would mean that the option was not given.
const CLI::Validator kNotZero([](const std::string& size) { return std::string(size == "0" ? "must not be 0" : ""); },
                              "");

// Refuses bytes that no page may have.
const CLI::Validator kGranularity(
    [](const std::string& bytes) {
      return plan::is_granularity(plan::parse_size(bytes).value_or(0))
                 ? std::string()
                 : std::string("must be ") + plan::kGranularityRule;
    },
    "");

// Refuses a name that is empty by accident, such as that of a variable which is not set.
const CLI::Validator kNotEmpty(
    [](const std::string& name) { return std::string(name.empty() ? "an empty name; name a file" : ""); }, "");

// The command line, and the command that it names.
class CommandLine {
 public:
  explicit CommandLine(const std::string& name) : app_(description_of(name), name) {
    app_.footer(kExitCodes);
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.set_version_flag("--version", "stalloc-plan " STALLOC_VERSION);
    app_.require_subcommand(0, 1);
    add_plan();
    add_contiguous();
    add_truncated(app_);
    if (name == kPlanOfFrontEnd) return;  // the others are commands of `stalloc`, too
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
      if (error.get_exit_code() == 0) return print(shown(error));
      return fail(error.what() + where_explained(), kExitUsage);
    }
    if (const std::string wrong = why_not_before_command(); !wrong.empty()) return fail(wrong, kExitUsage);
    if (is_named(show_app_)) return run_with_read(show_);
    if (is_named(check_app_)) return run_with_read(check_);
    if (is_named(compare_app_)) return run_with_read(compare_);
    if (is_named(report_app_)) return run_with_read(report_);
    const std::string wrong = why_not_to_plan();
    if (!wrong.empty()) return fail(wrong, kExitUsage);
    plan_.options.streams = streams_ == "isolate" ? plan::StreamMode::Isolate : plan::StreamMode::Order;
    plan_.json = summary_ == "json";
    return run_with_read(plan_);
  }

 private:
  // The help or the version, for which the command line asks.
  std::string shown(const CLI::ParseError& error) {
    std::ostringstream text;
    app_.exit(error, text, text);
    return text.str();
  }

  // Whether the command line names this subcommand.
  static bool is_named(const CLI::App* subcommand) { return subcommand != nullptr && subcommand->parsed(); }

  // The end of a message, which says how to get help on what the command line names.
  [[nodiscard]] std::string where_explained() const {
    std::string name = app_.get_name();
    for (const CLI::App* subcommand : {show_app_, check_app_, compare_app_, report_app_}) {
      if (is_named(subcommand)) name += " " + subcommand->get_name();
    }
    return " (" + name + " --help explains)";
  }

  template <class Command>
  int run_with_read(Command& command) {
    command.read = read_;
    return tool::run(command);
  }

  // Says which argument of planning the command line has before a subcommand, which would ignore it; empty: none.
  [[nodiscard]] std::string why_not_before_command() const {
    if (app_.get_subcommands().empty()) return "";
    for (const CLI::Option* option : app_.get_options()) {
      if (option->count() == 0 || option->check_lname(kAcceptTruncated)) continue;
      return fmt::format("{} is for planning, and {} makes no plan: name the command first, then what it is about{}",
                         option->get_name(), app_.get_subcommands().front()->get_name(), where_explained());
    }
    return "";
  }

  // Says what is wrong with a command line that names no subcommand; empty: nothing is.
  [[nodiscard]] std::string why_not_to_plan() const {
    if (plan_.inputs.empty()) return "no trace given" + where_explained();
    if (dry_run_ && !plan_.output.empty()) return "--dry-run writes nothing: leave -o out";
    if (plan_.output.empty() && !dry_run_ && summary_option_->count() == 0) {
      return "where should the plan go? give -o FILE, or --dry-run for the summary alone";
    }
    if (plan_.output == "-" || is_standard_output(plan_.output))
      return "the summary goes to standard output: name a file for the plan";
    if (std::isnan(plan_.options.contiguous_seconds)) return "--seconds must be a number from 0 on";
    if (plan_.options.handle_cap != 0 &&
        plan_.options.handle_cap < std::max(plan_.options.granularity, plan::kUnitBytes)) {
      return "--handle-cap must be at least a page (--granularity says how large one is)";
    }
    return "";
  }

  void add_truncated(CLI::App& to) {
    to.add_flag(std::string("--") + kAcceptTruncated, read_.accept_truncated,
                "Accept a trace that is cut off, as a killed process may leave it, or damaged, and use the whole "
                "chunks before");
  }

  void add_plan() {
    app_.add_option("TRACE", plan_.inputs,
                    "The recorded run, or a CSV of requests; the traces of several ranks make one plan each")
        ->check(kNotEmpty)
        ->type_name("");
    app_.add_option("-o,--output", plan_.output,
                    "The file for the plan; an existing file is replaced when the new plan is complete. For several "
                    "traces, and for one of a rank if the name has no ending, the folder for the plans: plan.3.fb is "
                    "that of rank 3")
        ->type_name("PATH");
    app_.add_flag("--dry-run", dry_run_,
                  "Plan, check and print the summary, but write no plan (--summary without -o does the same)");
    summary_option_ =
        app_.add_option("--summary", summary_, "The form of the summary on standard output (default: text)")
            ->check(CLI::IsMember({"text", "json"}))
            ->type_name("text|json");
    app_.add_option("--granularity", plan_.options.granularity,
                    "Bytes of a physical page, with k, m or g for KiB, MiB, GiB (default: those of the recorded "
                    "device, else 2m)")
        ->transform(kSize)
        ->check(kNotZero)
        ->check(kGranularity)
        ->type_name("SIZE");
    handle_cap_option_ =
        app_.add_option("--handle-cap", plan_.options.handle_cap,
                        "The largest handle, in bytes (default: 6m, or 1/2048 of the plan if that is more)")
            ->transform(kSize)
            ->check(kNotZero)
            ->type_name("SIZE");
    app_.add_option("--streams", streams_,
                    "order: memory freed on one stream may serve another stream, which waits for an event (default); "
                    "isolate: it serves only its own stream")
        ->check(CLI::IsMember({"order", "isolate"}))
        ->type_name("order|isolate");
    app_.add_flag("--whole-run", plan_.options.whole_run,
                  "Plan all requests of a recorded run, for a program that makes exactly the same requests again. By "
                  "default, the "
                  "step that repeats is planned; if no step repeats, the requests that live through the run are");
  }

  void add_contiguous() {
    CLI::Option& contiguous = *app_.add_flag(
        "--contiguous", plan_.options.contiguous,
        "Plan one piece of memory without stitched views, for devices without virtual memory management. "
        "The summary compares its size with the peak of live bytes, the least that any plan needs");
    contiguous.excludes(handle_cap_option_);  // the one piece is one handle
    app_.add_option("--seconds", plan_.options.contiguous_seconds,
                    "With --contiguous: how long the plan of each device is improved (default: 1)")
        ->check(CLI::Range(0.0, 1e6))
        ->type_name("SECONDS")
        ->needs(&contiguous);
    app_.add_option("--capacity", plan_.options.contiguous_capacity,
                    "With --contiguous: the plan is not improved further once it needs no more than this (default: "
                    "improve as long as --seconds says)")
        ->transform(kSize)
        ->type_name("SIZE")
        ->needs(&contiguous);
  }

  void add_show() {
    show_app_ = app_.add_subcommand("show", "Describe a trace, a plan or a CSV of requests");
    show_app_->add_option("FILE", show_.input, "The trace, the plan or the CSV")
        ->required()
        ->check(kNotEmpty)
        ->type_name("");
    show_app_->add_flag("--json", show_.json, "Print JSON (docs/formats.md)");
    show_app_->add_flag("--events", show_.events, "Print all events and call stacks of a trace, as JSON");
    add_truncated(*show_app_);
  }

  void add_check() {
    check_app_ = app_.add_subcommand("check", "Check whether a plan is sound for a trace");
    check_app_->add_option("TRACE", check_.source, "The recorded run, or the CSV of requests")
        ->required()
        ->check(kNotEmpty)
        ->type_name("");
    check_app_->add_option("PLAN", check_.plan, "The plan")->required()->check(kNotEmpty)->type_name("");
    add_truncated(*check_app_);
  }

  void add_compare() {
    compare_app_ = app_.add_subcommand("compare", "Simulate what other allocators would hold for the same requests");
    compare_app_
        ->add_option(
            "TRACE", compare_.input,
            "The recorded run, or a CSV of requests (`stalloc compare` also reads memory snapshots of PyTorch)")
        ->required()
        ->check(kNotEmpty)
        ->type_name("");
    compare_app_->add_flag("--json", compare_.json, "Print JSON (docs/formats.md)");
    compare_app_
        ->add_option("--granularity", compare_.granularity,
                     "Bytes of a physical page for stalloc (default: those of the recorded device, else 2m)")
        ->transform(kSize)
        ->check(kNotZero)
        ->check(kGranularity)
        ->type_name("SIZE");
    add_truncated(*compare_app_);
  }

  void add_report() {
    report_app_ = app_.add_subcommand("report", "Print the JSON from which `stalloc report` makes its page");
    report_app_->add_option("TRACE", report_.input, "The recorded run, or a CSV of requests")
        ->required()
        ->check(kNotEmpty)
        ->type_name("");
    report_app_->add_option("PLAN", report_.plan, "A plan of this run (default: one is made)")
        ->check(kNotEmpty)
        ->type_name("");
    add_truncated(*report_app_);
  }

  CLI::App app_;
  ReadOptions read_;

  PlanCommand plan_;
  bool dry_run_ = false;
  std::string summary_ = "text";
  std::string streams_ = "order";
  CLI::Option* summary_option_ = nullptr;
  CLI::Option* handle_cap_option_ = nullptr;

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
  stalloc::tool::leave_no_unfinished_files();
  try {
    const std::string_view called = argc > 0 ? argv[0] : "";
    if (stalloc::tool::is_front_end(called)) stalloc::tool::speak_as("stalloc");
    return stalloc::tool::CommandLine(stalloc::tool::name_of(called)).run(argc, argv);
  } catch (const std::bad_alloc&) {
    return stalloc::tool::fail("out of memory");
  } catch (const std::exception& error) {
    return stalloc::tool::fail(error.what());
  }
}
