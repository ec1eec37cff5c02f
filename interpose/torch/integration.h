// SPDX-License-Identifier: Apache-2.0
// Decides how PyTorch's tensors reach stalloc: through a door (door.h), which wraps PyTorch's native allocator, or
// through CUDA, if PyTorch uses its backend cudaMallocAsync.
//
// PyTorch chooses its allocator when libc10_cuda.so is loaded, by its configuration in the environment, and a door can
// wrap only the native one. When a process starts, nobody knows which version of PyTorch it will load, if any. So the
// library answers PyTorch's getenv (getenv.cpp): at that moment PyTorch's library is loaded, so its version can be read
// and a door for it looked up. The environment itself stays as the user set it. The door is opened when CUDA is
// initialized, which is before PyTorch initializes its allocator.
#pragma once

namespace stalloc::torch {

// What getenv(name) must return to `caller`, a return address; `value` is the environment's own value, which may be
// null. Fast for names that are not PyTorch's. Thread-safe; never throws.
const char* configuration_for(const char* name, const void* caller, char* value) noexcept;

// If PyTorch has been loaded, opens the door for it, or logs one line that says why it cannot. Only the first call that
// finds PyTorch does this. Call it when CUDA has been initialized, and when a program asks for devices later, since
// PyTorch may be loaded in between. Thread-safe; never throws.
void open_door_once() noexcept;

// True for a return address inside PyTorch's native allocator while a door is open. Such requests, which are segments
// for graphs and pools, are left to CUDA. Lock-free.
bool is_native_allocator(const void* caller) noexcept;

// True once a door is open. No setting of the user then hides tensors from stalloc. Lock-free.
bool is_door_open() noexcept;

}  // namespace stalloc::torch
