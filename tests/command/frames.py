# SPDX-License-Identifier: Apache-2.0
"""A program for frames_test.py: allocates through the CUDA driver from all kinds of Python code, and writes to the file it is
given which Python frames each allocation has. Sizes tell allocations apart.

  frames.py OUTPUT
"""

import asyncio
import ctypes
import functools
import gc
import json
import sys
import threading

cuda, locked = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")  # without the global lock, and with it
address, context = ctypes.c_uint64(), ctypes.c_void_p()
expected = {}


def size():
    """A size that was not asked for before. What the calling frames are is noted; all that is on one line is one frame."""
    frame, frames = sys._getframe(1), []
    while frame is not None:
        frames.append([frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno])
        frame = frame.f_back
    wanted = 4096 * (len(expected) + 1)
    expected[wanted] = frames
    return ctypes.c_size_t(wanted)


def nested(depth, function):
    return function() if depth == 0 else nested(depth - 1, function)


def without_lock():
    cuda.cuMemAlloc_v2(ctypes.byref(address), size())


def with_lock():
    locked.cuMemAlloc_v2(ctypes.byref(address), size())


def asynchronous():
    cuda.cuMemAllocAsync(ctypes.byref(address), size(), None)


def generated():
    for _ in range(2):
        yield cuda.cuMemAlloc_v2(ctypes.byref(address), size())


async def awaited():
    await asyncio.sleep(0)
    without_lock()


class Tensor:
    def __init__(self):
        cuda.cuMemAlloc_v2(ctypes.byref(address), size())

    def __getitem__(self, key):
        return [key for _ in range(1) if cuda.cuMemAlloc_v2(ctypes.byref(address), size()) == 0]

    @functools.lru_cache
    def cached(self):
        return self[1]

    def __del__(self):
        with_lock()


def größe():
    without_lock()


def 函数():
    größe()


def sorted_by_c():
    return sorted([2, 1], key=lambda key: cuda.cuMemAlloc_v2(ctypes.byref(address), size()) or key)


def called_back():
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def compare(left, right):
        without_lock()
        return 0
    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(1, 2), ctypes.c_size_t(2), ctypes.c_size_t(4), compare)


def executed():
    for name in ("<string>", "\U0001f40d.py", "gr\u00f6\u00dfe.py"):
        exec(compile("\n\ndef inner():\n    without_lock()\ninner()\n", name, "exec"), globals())


def compiled_again():
    """Code objects that follow one another at one address, in which the same instruction is of another line."""
    for lines in range(8):
        exec("def same():\n" + "\n" * lines + " without_lock()\n" + "\nsame()", globals())
        gc.collect()


def far_away():
    source = "def far():\n" + "".join(f"    x{i} = {i}\n" if i % 3 else "\n" * 200 for i in range(300))
    exec(compile(source + "    without_lock()\nfar()\n", "far.py", "exec"), globals())


def over_several_lines():
    def alloc(wanted, *_):
        return cuda.cuMemAlloc_v2(
            ctypes.byref(
                address), wanted)
    wanted = size()
    alloc(wanted)
    frames = expected[wanted.value]
    first = alloc.__code__.co_firstlineno
    frames[:1] = [["alloc", __file__, first + 1], ["over_several_lines", __file__, frames[0][2] + 1]]


def in_thread(function):
    thread = threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(context), function()))
    thread.start()
    thread.join()


def main():
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    for function in (without_lock, with_lock, asynchronous):
        for depth in (0, 3, 80):
            nested(depth, function)
    list(generated())
    asyncio.run(awaited())
    tensor = Tensor()
    tensor.cached()
    del tensor
    Tensor.cached.cache_clear()
    for function in (größe, 函数, sorted_by_c, called_back, executed, compiled_again, far_away, over_several_lines):
        function()
    for function in (without_lock, with_lock, lambda: list(generated()), called_back, lambda: nested(20, without_lock)):
        in_thread(function)


if __name__ == "__main__":
    main()
    with open(sys.argv[1], "w", encoding="utf-8") as output:
        json.dump(expected, output)
