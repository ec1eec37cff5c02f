// SPDX-License-Identifier: Apache-2.0
// Prints its environment, sorted, without the preload itself. The program uses neither CUDA nor Python, so nothing else
// may differ (docs/environment.md).
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

extern char** environ;

int main() {
  std::vector<std::string> lines;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string line = *at;
    if (line.substr(0, line.find('=')) != "LD_PRELOAD") lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  for (const std::string& line : lines) std::puts(line.c_str());
  return 0;
}
