// SPDX-License-Identifier: Apache-2.0
// Which door fits a version of PyTorch.
#include "interpose/torch/pytorch.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "catch.h"

using stalloc::torch::door_version;
using stalloc::torch::find_door;
using stalloc::torch::PyTorch;

TEST_CASE("a door for a release fits all of its corrections, whatever their CUDA") {
  for (const char* version : {"2.11.0", "2.11.1", "2.11.0+cu130", "2.11.12+cu126"}) {
    CHECK(door_version(version) == "2.11");
  }
}

TEST_CASE("any other version needs a door of its own") {
  for (const char* version : {"2.11.0a0+git1234567", "2.12.0.dev20260101+cu130", "2.11.0rc1", "2.11.0a0+nv26.1",
                              "2.11.0+git1234567", "2.11", "", "unknown"}) {
    CHECK(door_version(version) == version);
  }
}

TEST_CASE("the door of just this version comes before its release's") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "stalloc-door-test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  PyTorch pytorch;
  pytorch.version = "2.11.0+cu130";
  CHECK(find_door(pytorch, folder).empty());
  std::ofstream(folder / "libstalloc_torch-2.11-old-strings.so") << "";
  CHECK(find_door(pytorch, folder).empty());
  std::ofstream(folder / "libstalloc_torch-2.11.so") << "";
  CHECK(find_door(pytorch, folder) == folder / "libstalloc_torch-2.11.so");
  std::ofstream(folder / "libstalloc_torch-2.11.0+cu130.so") << "";
  CHECK(find_door(pytorch, folder) == folder / "libstalloc_torch-2.11.0+cu130.so");
  pytorch.new_strings = false;
  CHECK(find_door(pytorch, folder) == folder / "libstalloc_torch-2.11-old-strings.so");
  pytorch.version = "../2.11";
  CHECK(find_door(pytorch, folder).empty());
  std::filesystem::remove_all(folder);
}
