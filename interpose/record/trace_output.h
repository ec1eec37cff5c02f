// The file a process records into: its alone, opened at the first write, appended to in whole chunks.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace stalloc::record {

// Not thread-safe.
class TraceOutput {
 public:
  explicit TraceOutput(std::string path) : path_(std::move(path)) {}
  ~TraceOutput();
  TraceOutput(const TraceOutput&) = delete;
  TraceOutput& operator=(const TraceOutput&) = delete;

  // Appends all bytes with as few write(2) as the system needs. A file that another live process records into (it holds
  // a lock) is left alone: `.PID` goes before the extension instead. Empty on success, else what went wrong.
  std::string append(std::span<const std::uint8_t> bytes);

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string open();

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace stalloc::record
