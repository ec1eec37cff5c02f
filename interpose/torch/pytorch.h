// SPDX-License-Identifier: Apache-2.0
// Finds the PyTorch that is loaded into this process, and the door for it.
#pragma once

#include <string>

#include "interpose/base/loader.h"

namespace stalloc::torch {

struct PyTorch {
  loader::Module allocator;  // libc10_cuda.so
  std::string version;       // from version.py, for example "2.11.0+cu130"; empty: unknown
  bool new_strings = true;   // built with the C++11 ABI of std::string; only PyPI's wheels of 2.6 are not
};

// False if libc10_cuda.so is not loaded: PyTorch is not loaded yet, or has no CUDA. Takes the dynamic loader's lock.
// Throws std::bad_alloc. Thread-safe.
bool find_pytorch(PyTorch* found);

// Returns the path of the door for `pytorch`; empty if there is none. Searches `folder`, which may be empty, then
// stalloc-torch beside the library; in each, a door for exactly this version, then one for its release. Throws
// std::bad_alloc. Thread-safe.
std::string find_door(const PyTorch& pytorch, const std::string& folder);

// The version in the file name of a door: "2.11" for all releases 2.11.x with any CUDA. For other builds, such as
// nightlies, it is the whole version, since any two of them may differ. Throws std::bad_alloc. Pure.
std::string door_version(const std::string& version);

}  // namespace stalloc::torch
