# SPDX-License-Identifier: Apache-2.0
"""A program for tests: allocates through the CUDA driver, says so, and then waits for a line on standard input.

  program.py [COUNT [BYTES]]    exits with 3 when an allocation fails
"""

import ctypes
import sys

count = int(sys.argv[1]) if len(sys.argv) > 1 else 4
size = int(sys.argv[2]) if len(sys.argv) > 2 else 3 << 20
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
failed = sum(cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), None) != 0 for _ in range(count))
print("allocated", flush=True)
sys.stdin.readline()
sys.exit(3 if failed else 0)
