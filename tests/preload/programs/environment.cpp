// Prints its environment, sorted, without the preload itself and the two names the library sets by design.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

extern char** environ;

int main() {
  std::vector<std::string> lines;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string line = *at;
    const std::string name = line.substr(0, line.find('='));
    if (name != "LD_PRELOAD" && name != "PYTORCH_ALLOC_CONF" && name != "PYTORCH_CUDA_ALLOC_CONF") {
      lines.push_back(line);
    }
  }
  std::sort(lines.begin(), lines.end());
  for (const std::string& line : lines) std::puts(line.c_str());
  return 0;
}
