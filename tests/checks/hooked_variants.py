#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says whether every function of cuda.h that concerns the library is hooked.

  hooked_variants.py CUDA_H HOOKS_DEF

Three kinds concern it: other versions of a hooked function (unversioned, _v2, _ptsz, ...), which programs that were built
with another CUDA call, and functions whose names say that they allocate or free device memory, answer questions about
it, end what it belongs to, record events and wait for them, or take device memory for contexts, streams, code and
graphs; and those of which the header says that they may run out of memory. Each is a hook, or is named below with the
reason why it is none.
"""

import re
import sys

# Names that are to be thought about: hooked, or an exception.
CONCERNS = re.compile(r"^cu("
                      r"Mem(Alloc|Free|Pool|GetAddressRange|GetInfo|GetAccess|GetHandle|RetainAllocation)"
                      r"|Mem\w*MemPool|Device\w*MemPool|Mem(Set|Get)Access|Mem(Map|Unmap|AddressFree)|MulticastBind"
                      r"|Pointer|Ipc\w*Mem|Stream(Destroy|BeginCapture)"
                      r"|(Green)?CtxDestroy|Ctx(Detach|EnablePeer)|DevicePrimaryCtx(Reset|Release)|GetProcAddress"
                      r"|Event(Create|Destroy|Record|Query|Synchronize)|\w*RecordEvent|Ipc\w*Event"
                      r"|Stream(WaitEvent|Synchronize|Query)|Graph\w*EventRecord\w*(Node|Set\w+)$"
                      r"|GraphAddNode|Graph(Exec)?NodeSetParams"
                      r"|(Green)?CtxCreate|(GreenCtx)?StreamCreate|DevicePrimaryCtxRetain|GraphInstantiate|GraphExecUpdate"
                      r"|Graph\w*KernelNode(SetParams|$)|LibraryLoad|LibraryGetGlobal|FuncLoad|Occupancy|(Tex|Surf)ObjectCreate"
                      r"|Launch)")

NARROW = "addresses and sizes of 32 bits: what is served lies above, and no device of today gives such memory"
HOST = "memory of the host"
NOT_SERVED = "its memory is never served: CUDA answers"
FORWARDED = "CUDA's answer is right: it was told of everything that the program set"
NO_MEMORY = "succeeds on a full device"
NODE = "describes a node, which takes no memory of a device"
ANSWER = "asks about what is there"
EXCEPTIONS = {
    "cuDeviceGetNvSciSyncAttributes": ANSWER,
    "cuGraphBatchMemOpNodeSetParams": NODE,
    "cuGraphClone": NODE,
    "cuGraphCreate": NODE,
    "cuGraphEventWaitNodeSetEvent": NODE,
    "cuGraphExternalSemaphoresSignalNodeSetParams": NODE,
    "cuGraphExternalSemaphoresWaitNodeSetParams": NODE,
    "cuLinkAddData": HOST,
    "cuLinkAddFile": HOST,
    "cuLinkComplete": HOST,
    "cuLinkCreate": HOST,
    "cuMemAddressReserve": "takes addresses only",
    "cuMemHostUnregister": "gives memory back",
    "cuStreamGetDevice": ANSWER,
    "cuStreamGetFlags": ANSWER,
    "cuStreamGetPriority": ANSWER,
    "cuLaunchHostFunc": NO_MEMORY,
    "cuLaunchHostFunc_ptsz": NO_MEMORY,
    "cuArrayCreate": NARROW,
    "cuArray3DCreate": NARROW,
    "cuMemHostRegister": NARROW,
    "cuMemAlloc": NARROW,
    "cuMemAllocPitch": NARROW,
    "cuMemFree": NARROW,
    "cuMemGetAddressRange": NARROW,
    "cuMemGetInfo": NARROW,
    "cuMemAllocHost": HOST,
    "cuMemFreeHost": HOST,
    "cuMemMapArrayAsync": "maps arrays, which name no address",
    "cuMemMapArrayAsync_ptsz": "maps arrays, which name no address",
    "cuMemPoolExportPointer": "pools whose memory may leave the process are not served",
    "cuMemPoolExportToShareableHandle": "pools whose memory may leave the process are not served",
    "cuMemPoolImportFromShareableHandle": "a pool that the program did not make is not served",
    "cuMemPoolImportPointer": NOT_SERVED,
    "cuIpcOpenMemHandle": NOT_SERVED,
    "cuIpcCloseMemHandle": NOT_SERVED,
    "cuDeviceGetDefaultMemPool": FORWARDED,
    "cuDeviceGetMemPool": FORWARDED,
    "cuMemGetDefaultMemPool": FORWARDED,
    "cuMemGetMemPool": FORWARDED,
    "cuMemPoolGetAccess": FORWARDED,
}


def functions_of(header):
    """Every name of a function that the header declares or renames, with its forms for per-thread default streams."""
    with open(header, encoding="utf-8", errors="replace") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    names = set(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    for old, form, new in re.findall(r"#define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_(PTSZ|PTDS)\()?(cu[A-Z]\w*)", text):
        names |= {old, new}
        if form:
            names.add(f"{new}_{form.lower()}")
    # The header's own helper; the library exports no such function.
    return names - {"cuGetProcAddress_v2_ptsz"}


def running_out(header):
    """The functions that return CUDA_ERROR_OUT_OF_MEMORY, as the comments before their declarations say."""
    with open(header, encoding="utf-8", errors="replace") as file:
        pieces = re.split(r"/\*\*(.*?)\*/", file.read(), flags=re.DOTALL)
    for comment, behind in zip(pieces[1::2], pieces[2::2]):
        declared = re.match(r"\s*(?:__\w+\s+)*CUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(", behind)
        if declared and "CUDA_ERROR_OUT_OF_MEMORY" in comment:
            yield declared[1]


def hooks_of(definitions):
    with open(definitions, encoding="utf-8") as file:
        return set(re.findall(r"^STALLOC_HOOK\(Driver, (\w+),", file.read(), re.MULTILINE))


def base_of(name):
    return re.sub(r"(_v\d+)?(_pts[z]|_ptds)?$", "", name)


def defects(known, hooks, takes_memory):
    if len(known) < 300:
        yield f"only {len(known)} functions were found in the header"
    bases = {base_of(name) for name in hooks}
    for name in sorted(known - hooks - EXCEPTIONS.keys()):
        if base_of(name) in bases:
            yield f"{name} is a version of a hooked function and is not hooked"
        elif CONCERNS.match(name) or name in takes_memory:
            yield f"{name} is neither hooked nor an exception"
    yield from (f"{name} is hooked and an exception" for name in sorted(hooks & EXCEPTIONS.keys()))


def main():
    found = list(defects(functions_of(sys.argv[1]), hooks_of(sys.argv[2]), set(running_out(sys.argv[1]))))
    for defect in found:
        print(f"{sys.argv[1]}: {defect}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
