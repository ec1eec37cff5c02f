// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/input.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "plan/files/checksum.h"
#include "plan/files/csv.h"
#include "plan/files/file_io.h"
#include "plan/files/plan_file.h"
#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

using plan::Expected;
using Bytes = std::vector<std::uint8_t>;

// Returns the device and the inode of a regular file, which identify it; nothing if there is no regular file.
std::optional<std::pair<dev_t, ino_t>> identity(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return std::nullopt;
  return std::pair(file.st_dev, file.st_ino);
}

Expected<Input> read_trace(const Bytes& bytes, const ReadOptions& options, Source source) {
  auto trace = trace::decode_trace(bytes, {.take_whole_chunks = options.accept_truncated});
  if (!trace.ok()) {
    const bool has_chunks = !options.accept_truncated && trace::decode_trace(bytes, {.take_whole_chunks = true}).ok();
    return Expected<Input>::failure(trace.error + (has_chunks ? "; --accept-truncated uses these" : ""));
  }
  source.recorded = true;
  source.checksum = trace.value.source_checksum;
  source.lifetimes = plan::find_lifetimes(trace.value);
  source.trace = std::move(trace.value);
  return {std::move(source), {}};
}

Expected<Input> read_csv(std::string_view text, Source source) {
  auto problem = plan::parse_csv(text);
  if (!problem.ok()) return Expected<Input>::failure(problem.error);
  Checksum sum;
  sum.add(text.data(), text.size());
  source.checksum = sum.value();
  source.lifetimes.devices.push_back(std::move(problem.value));
  return {std::move(source), {}};
}

Expected<Input> read_plan(const Bytes& bytes) {
  auto plan = plan::decode_plan(bytes);
  if (!plan.ok()) return Expected<Input>::failure(plan.error);
  return {std::move(plan.value), {}};
}

// Any text file is read as a CSV, so that the error says what is wrong with its header.
constexpr std::size_t kLeastBytes = 8;  // up to the end of the identifier of a trace or a plan

bool is_text(std::string_view start) { return !start.empty() && start.find('\0') == std::string_view::npos; }

std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns an error if a file that begins so cannot be an input; empty if it may be one.
std::string find_defect(std::span<const std::uint8_t> start) {
  const std::string_view text = text_of(start);
  if (start.empty()) return "the file is empty";
  if (trace::is_trace(start) || plan::is_plan(start)) return {};
  if (text.starts_with("\xfd"
                       "7zXZ"))
    return "it is compressed; unpack it first: xz -dk FILE";
  if (text.starts_with("\x1f\x8b")) return "it is compressed; unpack it first: gzip -dk FILE";
  if (start.size() > 2 && start[0] == 0x80 && start[1] >= 2 && start[1] <= 5) {
    return "a pickle; if it is a memory snapshot of PyTorch, `stalloc snapshot` describes it, and with -o writes its "
           "requests for the planner";
  }
  if (start.size() < kLeastBytes) return "too short for a trace, a plan or a CSV of requests";
  return is_text(text.substr(0, 512)) ? "" : "neither a trace nor a plan nor a CSV of requests";
}

// Pre: find_defect found nothing.
Expected<Input> decode(const Bytes& bytes, const ReadOptions& options, Source source) {
  if (trace::is_trace(bytes)) return read_trace(bytes, options, std::move(source));
  if (plan::is_plan(bytes)) return read_plan(bytes);
  return read_csv(text_of(bytes), std::move(source));
}

// The largest file that is read: as large as the machine's memory.
std::uint64_t most_bytes() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
  return static_cast<std::uint64_t>(std::max(pages, 1L)) * static_cast<std::uint64_t>(std::max(bytes, 1L));
}

}  // namespace

Expected<Input> read_input(const std::string& path, const ReadOptions& options) {
  const auto bytes = plan::read_file(path, {.most_bytes = most_bytes(), .find_defect = find_defect});
  if (!bytes.ok()) return Expected<Input>::failure(bytes.error);
  Source source;
  source.name = base_name(path);
  Expected<Input> input = decode(bytes.value, options, std::move(source));
  if (!input.ok()) input.error = path + ": " + input.error;
  return input;
}

Expected<Source> read_source(const std::string& path, const ReadOptions& options) {
  Expected<Input> input = read_input(path, options);
  if (!input.ok()) return Expected<Source>::failure(input.error);
  if (auto* source = std::get_if<Source>(&input.value)) return {std::move(*source), {}};
  return Expected<Source>::failure(path + ": a plan, where a trace or a CSV of requests is needed");
}

std::string find_replaced(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  std::set<std::pair<dev_t, ino_t>> read;
  for (const std::string& input : inputs) {
    if (const auto file = identity(input)) read.insert(*file);
  }
  for (const std::string& output : outputs) {
    const auto file = identity(output);
    if (file && read.contains(*file)) return output;
  }
  return {};
}

}  // namespace stalloc::tool
