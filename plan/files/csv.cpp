// SPDX-License-Identifier: Apache-2.0
#include "plan/files/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <unordered_set>

namespace stalloc::plan {
namespace {

enum Column : std::size_t { kId, kLower, kUpper, kSize, kStream, kStack, kColumns };
constexpr std::array<std::string_view, kColumns> kNames = {"id", "lower", "upper", "size", "stream", "stack"};
constexpr std::size_t kNeeded = kStream;  // columns that every file has
constexpr std::uint64_t kMostStreams = std::uint64_t{1} << 16;
constexpr std::uint64_t kMostStacks = std::uint64_t{1} << 32;
// The largest time. Differences of times, and the number after the largest one, can then be represented.
constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\"";
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// The text up to `separator`, taken off the front of `rest`.
std::string_view take(std::string_view& rest, char separator) {
  const auto at = rest.find(separator);
  const std::string_view field = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return field;
}

std::optional<Column> column_named(std::string_view name) {
  if (name == "buffer_id") return kId;
  if (name == "start" || name == "begin") return kLower;
  if (name == "end") return kUpper;
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Column>(found - kNames.begin());
}

// Which field of a row holds which column.
struct Header {
  std::vector<std::optional<Column>> fields;
  std::string error;
};

Header parse_header(std::string_view line) {
  Header header;
  std::array<bool, kColumns> seen{};
  for (std::string_view rest = line;;) {
    const bool more = rest.find(',') != std::string_view::npos;
    const auto column = column_named(trim(take(rest, ',')));
    header.fields.push_back(column);
    if (column) {
      if (seen[*column]) header.error = "column " + std::string(kNames[*column]) + " is named twice";
      seen[*column] = true;
    }
    if (!more) break;
  }
  for (std::size_t c = 0; c < kNeeded && header.error.empty(); ++c) {
    if (!seen[c]) header.error = "the header has no column " + std::string(kNames[c]) + " (id,lower,upper,size)";
  }
  return header;
}

std::string parse_number(std::string_view field, Column column, std::uint64_t& value) {
  const auto [end, code] = std::from_chars(field.data(), field.data() + field.size(), value);
  const std::string name(kNames[column]);
  if (field.empty()) return "no " + name;
  if (code == std::errc::result_out_of_range) return name + " is too large";
  if (code != std::errc() || end != field.data() + field.size()) return name + " is not a whole number";
  if (column == kSize && value > kMostBytes) return name + " is too large";
  if (column == kStream && value >= kMostStreams) return name + " is too large";
  if (column == kStack && value >= kMostStacks) return name + " is too large";
  if (column != kId && value > kLargest) return name + " is too large";
  return {};
}

std::string parse_row(std::string_view line, const Header& header, Request& request) {
  std::array<std::uint64_t, kColumns> values{};
  std::size_t field = 0;
  for (std::string_view rest = line;; ++field) {
    const bool more = rest.find(',') != std::string_view::npos;
    if (field >= header.fields.size()) return "more fields than the header names";
    const std::string_view text = trim(take(rest, ','));
    if (const auto column = header.fields[field]) {
      if (std::string error = parse_number(text, *column, values[*column]); !error.empty()) return error;
    }
    if (!more) break;
  }
  if (field + 1 < header.fields.size()) return "fewer fields than the header names";
  if (values[kUpper] <= values[kLower]) return "upper is not greater than lower";
  request.id = values[kId];
  request.lower = values[kLower];
  request.upper = values[kUpper];
  request.size = values[kSize];
  request.stream = request.allocation_stream = request.free_stream = static_cast<std::uint32_t>(values[kStream]);
  request.stack = static_cast<std::uint32_t>(values[kStack]);
  return {};
}

// Times of the file -> `until`, by the order of requests.
void order(std::vector<Request>& requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const Request& a, const Request& b) { return a.lower < b.lower; });
  for (Request& request : requests) {
    const auto next = std::lower_bound(requests.begin(), requests.end(), request.upper,
                                       [](const Request& other, std::uint64_t time) { return other.lower < time; });
    request.until = static_cast<std::uint64_t>(next - requests.begin());
  }
}

}  // namespace

Expected<Problem> parse_csv(std::string_view text) {
  using Result = Expected<Problem>;
  constexpr std::string_view kMark = "\xEF\xBB\xBF";  // some editors begin UTF-8 files with it
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  Result result;
  std::optional<Header> header;
  std::unordered_set<std::uint64_t> ids;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = trim(take(text, '\n'));
    const auto failure = [number](const std::string& what) {
      return Result::failure("line " + std::to_string(number) + ": " + what);
    };
    if (line.empty()) continue;
    if (!header) {
      header = parse_header(line);
      if (!header->error.empty()) return failure(header->error);
      continue;
    }
    Request& request = result.value.requests.emplace_back();
    if (const std::string error = parse_row(line, *header, request); !error.empty()) return failure(error);
    if (!ids.insert(request.id).second) return failure("id " + std::to_string(request.id) + " appears twice");
  }
  if (!header) return Result::failure("not a CSV of requests: the file is empty");
  order(result.value.requests);
  return result;
}

}  // namespace stalloc::plan
