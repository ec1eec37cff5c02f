// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/commands.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "plan/files/plan_file.h"
#include "tools/stalloc-plan/input.h"
#include "tools/stalloc-plan/output.h"
#include "tools/stalloc-plan/plan_ranks.h"
#include "tools/stalloc-plan/progress.h"
#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/summary.h"
#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

plan::Expected<std::string> show(const ShowCommand& command) {
  Progress progress;
  progress.begin("reading " + command.input);
  const auto input = read_input(command.input, command.read);
  if (!input.ok()) return plan::Expected<std::string>::failure(input.error);
  progress.begin("describing " + command.input);
  const auto* recorded = std::get_if<Source>(&input.value);
  if (command.events && (recorded == nullptr || !recorded->recorded)) {
    return plan::Expected<std::string>::failure(command.input + ": not a trace; only traces have events");
  }
  if (command.events) return {events_json(*recorded), {}};
  if (const auto* plan = std::get_if<plan::Plan>(&input.value)) {
    return {command.json ? plan_json(*plan) : plan_text(*plan), {}};
  }
  return {command.json ? source_json(*recorded) : source_text(*recorded), {}};
}

// Returns what is printed of a sound plan; error: what is wrong with it.
plan::Expected<std::string> check(const CheckCommand& command) {
  using Result = plan::Expected<std::string>;
  Progress progress;
  progress.begin("reading " + command.source);
  const auto source = read_source(command.source, command.read);
  if (!source.ok()) return Result::failure(source.error);
  progress.begin("checking " + command.plan);
  const auto plan = read_sound_plan(command.plan, source.value, command.source, command.read);
  if (!plan.ok()) return Result::failure(plan.error);
  return {fmt::format("{}: sound for {}\n", printable(command.plan), printable(command.source)) +
              left_out_text(source.value),
          {}};
}

bool names_folder(const std::string& output) {
  struct stat info {};
  return output.ends_with('/') || (::stat(output.c_str(), &info) == 0 && S_ISDIR(info.st_mode));
}

// Whether the output means a file, or is none: it exists, or its name has an ending.
bool means_file(const std::string& output) {
  struct stat info {};
  return base_name(output).find('.') != std::string::npos || output.empty() || ::lstat(output.c_str(), &info) == 0;
}

// The folder in which the output is made: the output itself if that is a folder, else the one in which its name, or
// what a link leads to, lies. None for what is written in place, as a pipe is, and for a link to a file that is yet to
// be made.
std::optional<std::string> folder_of(const std::string& output) {
  std::filesystem::path path(output);
  if (!path.has_filename()) path = path.parent_path();  // it ends with a slash
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return path;
    if (!S_ISREG(info.st_mode)) return std::nullopt;
  } else if (::lstat(path.c_str(), &info) == 0) {
    return std::nullopt;
  }
  std::error_code ignored;
  if (const auto target = std::filesystem::canonical(path, ignored); !target.empty()) path = target;
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

// Says what is known beforehand to keep the output from being written; empty if nothing is. Planning should not be for
// nothing.
std::string unwritable(const std::string& output) {
  struct stat info {};
  const auto folder = folder_of(output);
  if (!folder || output.empty()) return {};
  if (::stat(folder->c_str(), &info) != 0) return errno == ENOENT ? *folder + ": no such folder; make it first" : "";
  if (!S_ISDIR(info.st_mode) || ::access(folder->c_str(), W_OK | X_OK) == 0) return {};
  return fmt::format("cannot write {}: {}", output, std::generic_category().message(errno));
}

}  // namespace

int run(const PlanCommand& command) {
  if (const std::string why = unwritable(command.output); !why.empty()) return fail(why);
  if (command.inputs.size() > 1 || names_folder(command.output)) return plan_ranks(command);
  const std::string& input = command.inputs.front();
  if (!find_replaced({command.output}, {input}).empty()) {
    return fail(command.output + ": the plan would replace the input; name another file with -o");
  }
  plan::Expected<Source> source;
  plan::Expected<Planned> planned;
  bool of_one_rank = false;  // a pattern like trace.*.fb matches one file if there is one rank
  {
    Progress progress;
    progress.begin("reading " + input);
    source = read_source(input, command.read);
    of_one_rank = source.ok() && !recorded_rank(source.value).empty() && !means_file(command.output);
    if (source.ok() && !of_one_rank) planned = plan_source(source.value, command.options, &progress);
  }
  if (!source.ok()) return fail(source.error);
  if (of_one_rank) return plan_ranks(command, std::move(source.value));
  if (!planned.ok()) return fail(input + ": " + planned.error);
  Summary& summary = planned.value.summary;
  if (!command.output.empty()) {
    const std::string error = plan::write_plan(planned.value.plan, command.output);
    if (!error.empty()) return fail(error);
    summary.written = command.output;
  }
  return print(command.json ? summary_json(summary) : summary_text(summary));
}

int run(const ShowCommand& command) {
  const auto shown = show(command);
  return shown.ok() ? print(shown.value) : fail(shown.error);
}

int run(const CheckCommand& command) {
  const auto checked = check(command);
  return checked.ok() ? print(checked.value) : fail(checked.error);
}

}  // namespace stalloc::tool
