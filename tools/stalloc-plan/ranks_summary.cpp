// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <optional>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "tools/stalloc-plan/json.h"
#include "tools/stalloc-plan/plan_ranks.h"
#include "tools/stalloc-plan/summary.h"
#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

struct Totals {
  std::size_t planned = 0;
  std::uint64_t requests = 0;
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t physical_bytes = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t native_bytes = 0;
  const RankResult* worst = nullptr;  // lowest utilization
};

Totals totals_of(const RanksResult& result) {
  Totals totals;
  for (const RankResult& rank : result.ranks) {
    if (!rank.error.empty()) continue;
    ++totals.planned;
    totals.requests += rank.requests;
    totals.peak_live_bytes += rank.peak_live_bytes;
    totals.physical_bytes += rank.physical_bytes;
    totals.held_bytes += rank.held_bytes;
    totals.native_bytes += rank.native_bytes;
    const auto worth = [](const RankResult& of) { return utilization(of.peak_live_bytes, of.physical_bytes); };
    if (totals.worst == nullptr || worth(rank) < worth(*totals.worst)) totals.worst = &rank;
  }
  return totals;
}

std::string saved_text(std::uint64_t native, std::uint64_t held) {
  return native < held ? "-" + bytes_text(held - native) : bytes_text(native - held);
}

// "0, 1, 2 and 13 more"
std::string list_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNamed = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMostNamed) text += fmt::format(" and {} more", names.size() - kMostNamed);
  return text;
}

// Which ranks share a plan, the largest group first, and which differ from all others.
std::string groups_text(const RanksResult& result) {
  std::map<std::size_t, std::vector<std::string>> groups;  // by the rank whose plan it is
  for (std::size_t i = 0; i < result.ranks.size(); ++i) {
    const RankResult& rank = result.ranks[i];
    if (rank.error.empty())
      groups[rank.same_as == RankResult::kItself ? i : rank.same_as].push_back(printable(rank.rank));
  }
  std::vector<std::vector<std::string>> sorted;
  sorted.reserve(groups.size());
  for (auto& [first, names] : groups) sorted.push_back(std::move(names));
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  if (sorted.size() == 1 && sorted[0].size() > 1) return "all ranks make the same requests: one plan\n";
  std::string text;
  std::vector<std::string> single;
  for (const auto& names : sorted) {
    if (names.size() == 1) {
      single.push_back(names[0]);
    } else {
      text += fmt::format("the same requests: ranks {}\n", list_text(names));
    }
  }
  if (!single.empty() && sorted.size() > 1)
    text += fmt::format("different from all others: rank {}\n", list_text(single));
  return text;
}

// Notes several traces of one rank: the pattern also matched an older recording, or one made at the same time.
std::string repeated_text(const RanksResult& result) {
  std::map<std::string, std::string> first;
  std::string text;
  for (const RankResult& rank : result.ranks) {
    if (rank.recorded_rank.empty()) continue;
    const auto [at, is_new] = first.emplace(rank.recorded_rank, printable(rank.input));
    if (is_new) continue;
    text += fmt::format("note: {} and {} are both of rank {}: one of them belongs to another recording\n", at->second,
                        printable(rank.input), rank.recorded_rank);
  }
  return text;
}

// The remarks on the traces, each with the ranks of which it is true.
std::string traces_text(const RanksResult& result) {
  std::vector<std::pair<std::string, std::vector<std::string>>> notes;
  for (const RankResult& rank : result.ranks) {
    for (const std::string& note : rank.notes) {
      auto at = std::find_if(notes.begin(), notes.end(), [&note](const auto& other) { return other.first == note; });
      if (at == notes.end()) at = notes.insert(at, {note, {}});
      at->second.push_back(printable(rank.rank));
    }
  }
  std::string text;
  for (const auto& [note, names] : notes) {
    text += fmt::format("note: rank{} {}: {}\n", names.size() == 1 ? "" : "s", list_text(names), note);
  }
  return text;
}

// Notes traces without a rank, whose plans `stalloc run --plan FOLDER` does not find.
std::string unranked_text(const RanksResult& result) {
  std::string text;
  for (const RankResult& rank : result.ranks) {
    const bool is_named_by_rank = plan_name(rank) == "plan." + rank.rank + ".fb";
    if (rank.written.empty() || !rank.recorded || is_named_by_rank) continue;
    text += fmt::format(
        "note: the process of {} had no rank, so run it with the plan named:\n"
        "  stalloc run --plan {} -- ...\n",
        printable(rank.input), shell_word(printable(rank.written)));
  }
  return text;
}

}  // namespace

std::string ranks_text(const RanksResult& result) {
  std::size_t width = 4;
  for (const RankResult& rank : result.ranks) width = std::max(width, printable(rank.rank).size());
  std::string text = fmt::format("{:<{}} {:>9} {:>10} {:>10} {:>11} {:>10} {:>10}\n", "rank", width, "requests",
                                 "peak live", "plan", "utilization", "native", "saved");
  // The row of one rank, or of all.
  const auto row = [&](const std::string& name, const auto& of) {
    text += fmt::format("{:<{}} {:>9} {:>10} {:>10} {:>9.2f} % {:>10} {:>10}", name, width, of.requests,
                        bytes_text(of.peak_live_bytes), bytes_text(of.physical_bytes),
                        100 * utilization(of.peak_live_bytes, of.physical_bytes), bytes_text(of.native_bytes),
                        saved_text(of.native_bytes, of.held_bytes));
  };
  for (const RankResult& rank : result.ranks) {
    if (!rank.error.empty()) {
      text += fmt::format("{:<{}}  not planned\n", printable(rank.rank), width);
      continue;
    }
    row(printable(rank.rank), rank);
    if (rank.same_as != RankResult::kItself) text += " like " + printable(result.ranks[rank.same_as].rank);
    text += "\n";
  }
  const Totals totals = totals_of(result);
  if (totals.planned > 0) {
    row("all", totals);
    text += "\n";
  }
  text +=
      "native: what PyTorch's native allocator would hold for the same requests,\n"
      "simulated; saved: native less what stalloc holds for all requests, planned or\n"
      "not";
  const bool shared = std::any_of(result.ranks.begin(), result.ranks.end(),
                                  [](const RankResult& rank) { return rank.same_as != RankResult::kItself; });
  text += shared ? "; like 0: shares the plan of rank 0\n" : "\n";
  if (totals.worst != nullptr) {
    text += fmt::format("worst rank: {} ({} beyond its peak of live bytes)\n", printable(totals.worst->rank),
                        bytes_text(totals.worst->physical_bytes - totals.worst->peak_live_bytes));
  }
  text += groups_text(result);
  text += traces_text(result);
  text += repeated_text(result);
  text += unranked_text(result);
  text += fmt::format("{} of {} ranks planned in {:.3f} s{}\n", totals.planned, result.ranks.size(), result.seconds,
                      totals.planned > 0 ? ": sound" : "");
  return text;
}

namespace {

// Returns no value for an empty text.
std::optional<std::string> text_or_null(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

// Writes the figures of one rank, or of all ranks together.
template <class Figures>
void write_bytes(JsonWriter& json, const Figures& of) {
  json.member("requests", of.requests);
  json.member("peak_live_bytes", of.peak_live_bytes);
  json.member("physical_bytes", of.physical_bytes);
  json.member("utilization", Fixed{utilization(of.peak_live_bytes, of.physical_bytes)});
  json.member("held_bytes", of.held_bytes);
  json.member("native_bytes", of.native_bytes);
}

}  // namespace

std::string ranks_json(const RanksResult& result) {
  const Totals totals = totals_of(result);
  JsonWriter json(JsonWriter::Length::Long);
  {
    const auto object = json.object();
    write_bytes(json, totals);
    json.member("planned", totals.planned);
    json.member("worst_rank", totals.worst == nullptr ? std::nullopt : std::optional(totals.worst->rank));
    json.member("seconds", Fixed{result.seconds});
    const auto ranks = json.array("ranks");
    for (const RankResult& rank : result.ranks) {
      const bool itself = rank.same_as == RankResult::kItself;
      const auto one = json.object();
      json.member("rank", rank.rank);
      json.member("source", rank.input);
      json.member("plan", text_or_null(rank.written));
      json.member("error", text_or_null(rank.error));
      json.member("closed", rank.closed);
      json.member("same_as", itself ? std::nullopt : std::optional(result.ranks[rank.same_as].rank));
      write_bytes(json, rank);
      json.member("stitched_views", rank.stitched_views);
      json.member("handles", rank.handles);
      json.member("estimated_startup_ms", Fixed{rank.startup_ms, 3});
    }
  }
  return json.take();
}

}  // namespace stalloc::tool
