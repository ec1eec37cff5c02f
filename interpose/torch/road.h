// SPDX-License-Identifier: Apache-2.0
// How PyTorch's tensors reach stalloc: through a door (door.h) in front of its own allocator, or one by one through
// CUDA, by its backend cudaMallocAsync.
//
// PyTorch chooses its allocator when libc10_cuda.so is loaded, by its configuration in the environment, and the door
// can only be put in front of the native one. When a process starts, nobody can tell which PyTorch it will load, if
// any. So the library answers getenv (getenv.cpp), for the one caller and the names that matter: at that moment the
// library that asks is loaded, its version can be read, and whether there is a door for it is known. The environment
// itself stays as the user set it. The door is opened when CUDA is initialised, before PyTorch's allocator is.
#pragma once

namespace stalloc::torch {

// What getenv(name) is to return to `caller`, a return address, where the environment says `value` (may be null).
// Thread-safe; never throws. Cheap for names that are not PyTorch's.
const char* configuration(const char* name, const void* caller, char* value) noexcept;

// Looks whether PyTorch has been loaded, and if so opens the door for it, once; says in one line why not, if it cannot.
// Call it when CUDA was initialised, and when a program asks for devices later: PyTorch may be loaded after that.
void look() noexcept;

// True for a return address inside PyTorch's own allocator, while a door is open: its requests (segments for graphs and
// for pools) are left to CUDA. Lock-free.
bool is_native_allocator(const void* caller) noexcept;

// True once a door is open: the user's settings then hide no tensor. Lock-free.
bool is_open() noexcept;

}  // namespace stalloc::torch
