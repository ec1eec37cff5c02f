// SPDX-License-Identifier: Apache-2.0
// The PyTorch that is loaded into this process, and the door that fits it.
#pragma once

#include <string>

#include "interpose/base/loader.h"

namespace stalloc::torch {

struct PyTorch {
  loader::Module allocator;  // libc10_cuda.so
  std::string version;       // as version.py says, "2.11.0+cu130"; empty when it does not
  bool new_strings = true;   // built with the C++11 ABI of std::string, as all are but the wheels of 2.6 on PyPI
};

// False when libc10_cuda.so is not loaded: there is no PyTorch yet, or one without CUDA. Takes the loader's lock.
// Throws std::bad_alloc.
bool find_pytorch(PyTorch* found);

// The file of the door for it: the one built for just this version, else the one of its release, in `folder` (may be
// empty), else beside the library. Empty when there is none. Throws std::bad_alloc.
std::string find_door(const PyTorch& pytorch, const std::string& folder);

// What a door's file is named after: "2.11" for the releases 2.11.x of whatever CUDA; the whole version for anything
// else, a nightly say, of which no two need be alike. Throws std::bad_alloc.
std::string door_version(const std::string& version);

}  // namespace stalloc::torch
