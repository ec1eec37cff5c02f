// SPDX-License-Identifier: Apache-2.0
// Opens many copies of a plugin, each of which calls CUDA's runtime. Their later calls do not search the loaded
// modules: they return while another thread has the lock that such a search takes.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

namespace {

using Use = bool (*)();

struct Search {
  std::promise<void> begun;
  std::promise<void> used;
  bool in_time = false;
};

int visit(dl_phdr_info* /*info*/, std::size_t /*bytes*/, void* data) {
  auto& search = *static_cast<Search*>(data);
  search.begun.set_value();
  search.in_time = search.used.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<Use> plugins;
  for (int i = 0; i < 40; ++i) {
    const std::string copy = "./copy-" + std::to_string(i) + ".so";
    std::filesystem::copy_file(argv[1], copy);
    void* const plugin = dlopen(copy.c_str(), RTLD_NOW);
    const auto use = plugin == nullptr ? nullptr : reinterpret_cast<Use>(dlsym(plugin, "use_plugin"));
    if (use == nullptr) return 3;
    plugins.push_back(use);
  }
  const auto use_all = [&] { return std::all_of(plugins.begin(), plugins.end(), [](Use use) { return use(); }); };
  if (!use_all()) return 4;
  Search search;
  auto searching = std::async(std::launch::async, [&] { dl_iterate_phdr(visit, &search); });
  search.begun.get_future().wait();
  const bool succeeded = use_all();
  search.used.set_value();
  searching.get();
  std::printf("calls that succeeded: %s, without waiting: %s\n", succeeded ? "all" : "some",
              search.in_time ? "all" : "some");
  return 0;
}
