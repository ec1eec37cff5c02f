#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows what the driver makes of the legacy stream beside streams that synchronize with it: which calls on it are a
barrier between them, and whether an event makes an idle stream look busy. 0 means idle or done, 600 not yet. Needs a GPU and
nothing else; it is no test. (stalloc's own events follow this: docs/decisions/11-waits-for-frees.md.)"""

import argparse
import ctypes
import functools
import time

LEGACY = ctypes.c_void_p(1)
BUSY_BYTES, SMALL_BYTES = 1 << 30, 1 << 20


@functools.cache
def cuda():
    return ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda(), name)(*arguments)
    if result:
        raise OSError(f"{name}: error {result}")


def made(name, kind, *arguments):
    value = kind()
    call(name, ctypes.byref(value), *arguments)
    return value


def allocate(count):
    return made("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(count))


def fill(stream, at, count):
    call("cuMemsetD8Async", at, ctypes.c_ubyte(1), ctypes.c_size_t(count), stream)


def record(stream):
    event = made("cuEventCreate", ctypes.c_void_p, 2)
    call("cuEventRecord", event, stream)
    return event


def query(stream):
    return cuda().cuStreamQuery(stream)


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    call("cuInit", 0)
    call("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", ctypes.c_void_p, 0))
    big, small, other = allocate(BUSY_BYTES), allocate(SMALL_BYTES), allocate(SMALL_BYTES)
    idle, busy, asked = (made("cuStreamCreate", ctypes.c_void_p, 0) for _ in range(3))
    nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)

    def keep_busy(stream):
        for _ in range(1500):
            fill(stream, big, BUSY_BYTES)

    def allocate_and_free(stream):
        at = made("cuMemAllocAsync", ctypes.c_uint64, ctypes.c_size_t(SMALL_BYTES), stream)
        call("cuMemFreeAsync", at, stream)

    def say(name, stream, action):
        call("cuCtxSynchronize")
        keep_busy(stream)
        text = action()
        print(f"{name}: {text} (B still busy: {query(busy)} )", flush=True)
        call("cuCtxSynchronize")

    def beside(between):
        def action():
            between()
            fill(asked, small, SMALL_BYTES)
            time.sleep(0.05)
            return f"work on the other stream: {query(asked)}"
        return action

    def later(begin, answer):
        def action():
            begun = begin()
            time.sleep(0.05)
            return answer(begun)
        return action

    for name, between in (("nothing between", lambda: None), ("event on legacy", lambda: record(LEGACY)),
                          ("small work on legacy", lambda: fill(LEGACY, other, SMALL_BYTES)),
                          ("cuMemAllocAsync, cuMemFreeAsync on legacy", lambda: allocate_and_free(LEGACY)),
                          ("legacy waits for an event", lambda: call("cuStreamWaitEvent", LEGACY, record(idle), 0)),
                          ("host function on legacy", lambda: call("cuLaunchHostFunc", LEGACY, nothing, None))):
        say(name, busy, beside(between))
    print("--- legacy busy")
    apart = made("cuStreamCreate", ctypes.c_void_p, 1)
    for name, stream in (("event on an idle blocking stream", idle), ("event on an idle non-blocking stream", apart)):
        say(name, LEGACY, later(lambda stream=stream: record(stream), lambda event, stream=stream:
                                f"event {cuda().cuEventQuery(event)} stream {query(stream)} legacy {query(LEGACY)}"))
    say("alloc and free on an idle blocking stream", LEGACY,
        later(lambda: allocate_and_free(idle), lambda _: f"stream {query(idle)}"))
    say("work on an idle blocking stream", LEGACY,
        later(lambda: fill(idle, small, SMALL_BYTES), lambda _: f"stream {query(idle)}"))
    say("B busy, event on idle legacy", busy, later(lambda: record(LEGACY), lambda event: f"event {cuda().cuEventQuery(event)}"))


if __name__ == "__main__":
    main()
