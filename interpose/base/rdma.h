// SPDX-License-Identifier: Apache-2.0
// Whether other devices may read and write device memory by themselves: GPUDirect RDMA.
#pragma once

namespace stalloc {

// False when nothing on this machine can use GPUDirect RDMA: no device for verbs (InfiniBand, RoCE, EFA), no device of
// GDRCopy or GPUDirect Storage, and no kernel module that uses NVIDIA's, as every module does that reaches device
// memory by addresses. What cannot be looked up counts as present, except the folder of verbs' devices, which most
// machines lack. Under `root`, a folder without a slash at its end, are /dev and /sys. Never fails; thread-safe.
bool may_have_rdma(const char* root = "") noexcept;

}  // namespace stalloc
