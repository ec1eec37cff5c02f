// Prints its environment, sorted, without the preload itself and the names the library sets by design
// (docs/environment.md).
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

extern char** environ;

namespace {

constexpr std::string_view kSetByDesign[] = {"LD_PRELOAD",
                                             "PYTORCH_ALLOC_CONF",
                                             "PYTORCH_CUDA_ALLOC_CONF",
                                             "XLA_PYTHON_CLIENT_ALLOCATOR",
                                             "XLA_PYTHON_CLIENT_PREALLOCATE",
                                             "TF_GPU_ALLOCATOR"};

}  // namespace

int main() {
  std::vector<std::string> lines;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string line = *at;
    const std::string name = line.substr(0, line.find('='));
    if (std::find(std::begin(kSetByDesign), std::end(kSetByDesign), name) == std::end(kSetByDesign)) {
      lines.push_back(line);
    }
  }
  std::sort(lines.begin(), lines.end());
  for (const std::string& line : lines) std::puts(line.c_str());
  return 0;
}
