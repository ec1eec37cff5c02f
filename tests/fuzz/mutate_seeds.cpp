// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: over every seed file, and over seeded mutations of each.
#include <cstdio>
#include <filesystem>
#include <random>
#include <vector>

#include "plan/files/file_io.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr int kMutations = 3000;  // of each seed

void mutate(std::vector<std::uint8_t>& bytes, std::mt19937& random) {
  for (std::uint32_t edits = 1 + random() % 4; edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<std::uint8_t>(random());
        break;
      case 1:
        bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1u << random() % 8));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3: {  // a number at its limits
        const std::uint8_t value = random() % 2 == 0 ? 0xff : 0x00;
        for (std::size_t i = at; i < bytes.size() && i < at + 4; ++i) bytes[i] = value;
        break;
      }
      default: {  // a stretch from elsewhere
        const std::size_t from = random() % bytes.size();
        for (std::size_t i = 0; i < 16 && at + i < bytes.size() && from + i < bytes.size(); ++i) {
          bytes[at + i] = bytes[from + i];
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int seeds = 0;
  std::mt19937 random(1);
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    const auto seed = stalloc::plan::read_file(entry.path());
    if (!seed.ok()) return 1;
    ++seeds;
    LLVMFuzzerTestOneInput(seed.value.data(), seed.value.size());
    for (int i = 0; i < kMutations; ++i) {
      std::vector<std::uint8_t> bytes = seed.value;
      mutate(bytes, random);
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
  }
  std::printf("%d seeds\n", seeds);
  return seeds > 0 ? 0 : 1;
}
