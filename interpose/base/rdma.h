// SPDX-License-Identifier: Apache-2.0
// GPUDirect RDMA, by which other devices read and write device memory directly.
#pragma once

namespace stalloc {

// False if nothing on this machine can use GPUDirect RDMA: there is no device for verbs (InfiniBand, RoCE, EFA), no
// device of GDRCopy or GPUDirect Storage, and no kernel module that uses NVIDIA's module, as every module that accesses
// device memory by addresses does. If one of these cannot be determined, it counts as present, except for the folder of
// verbs devices, which most machines lack. /dev and /sys are looked up below `root`, a folder without a slash at its
// end. Never fails; thread-safe.
bool may_have_rdma(const char* root = "") noexcept;

}  // namespace stalloc
