#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one program under one allocator, and makes turns when it is told to. measures.py starts it.

  worker.py NAME DEVICE

It imports what it needs, and uses the card only when the first line of standard input says how: {"options": ...,
"limit": BYTES}, where `limit` is what PyTorch may take from the device (0: no limit). Each further line is an order,
{"size": N, "turns": N, "fresh": BOOL}; with `fresh`, caches are emptied and peaks forgotten first. All lines are JSON,
and each is answered by one: how long the start took, or what each turn took and held, and whether memory ran out.
"""

import gc
import importlib
import json
import os
import pathlib
import sys
import time

import workloads

SAID_OF_EXHAUSTION = ("out of memory", "OutOfMemory", "RESOURCE_EXHAUSTED", "ALLOC_FAILED")
FIGURES = ("live_peak", "physical_peak", "mapping_calls_at_start", "mapping_calls_after_start", "mapping_ns_after_start",
           "planned_requests", "dynamic_requests", "refused_slots", "spare_slots", "resynchronizations", "grows", "stitches")


class Device:
    """The memory in use on the card as the driver counts it: by this process where NVML can tell, and by all."""

    def __init__(self, kind):
        self.handle = None
        if kind == "cpu":
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
            find = pynvml.nvmlDeviceGetHandleByIndex if visible.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
            self.nvml, self.handle = pynvml, find(int(visible) if visible.isdigit() else visible)
        except Exception as error:  # the figure is left out
            print(f"no NVML: {error}", file=sys.stderr)

    def used(self):
        """The bytes in use, {"process": ..., "device": ...}, as far as they are known."""
        if self.handle is None:
            return {}
        used = {"device": self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used}
        for process in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                used["process"] = process.usedGpuMemory
        return used


def read_statistics():
    """A function that returns the figures of a preloaded stalloc."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from figures import Statistics

    return Statistics().read


class TorchMeter:
    """Reads PyTorch's own figures of memory."""

    def __init__(self, kind, limit):
        import torch

        self.torch, self.on_card = torch, kind == "cuda"
        if self.on_card:
            torch.cuda.init()
            if limit:
                torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
            torch.ones(256, 256, device=kind) @ torch.ones(256, 256, device=kind)  # makes the context and a library's workspace
            torch.cuda.synchronize()

    def synchronize(self):
        if self.on_card:
            self.torch.cuda.synchronize()

    def forget(self):
        gc.collect()
        if self.on_card:
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

    def peaks(self):
        if not self.on_card:
            return {}
        statistics = self.torch.cuda.memory_stats()
        return {"live": self.torch.cuda.max_memory_allocated(), "held": self.torch.cuda.max_memory_reserved(),
                "retries": statistics.get("num_alloc_retries", 0)}


class OtherMeter:
    """For frameworks whose memory only the driver knows. Their turns end when their work is done."""

    def __init__(self, framework):
        module = importlib.import_module({"jax": "jax.numpy"}.get(framework, framework))
        module.ones((256, 256)).sum().item()  # makes the context

    def synchronize(self):
        pass

    def forget(self):
        gc.collect()

    def peaks(self):
        return {}


def make_turn(program, meter, device, statistics, size):
    began, busy = time.perf_counter(), time.process_time()
    done = program.turn(size)
    host = time.perf_counter() - began
    meter.synchronize()
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    said = statistics()
    return {"size": size, "done": done, "seconds": seconds, "host_seconds": host, "cpu_seconds": busy, **meter.peaks(),
            "used": device.used(), "stalloc": {name: said[name] for name in FIGURES if name in said}}


def carry_out(order, program, meter, device, statistics):
    if order.get("fresh"):
        meter.forget()
    turns, exhausted = [], False
    for _ in range(order["turns"]):
        try:
            turns.append(make_turn(program, meter, device, statistics, order["size"]))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if not any(words in text for words in SAID_OF_EXHAUSTION):
                raise
            exhausted = True
        if exhausted:  # outside the handler, where nothing refers to what the turn had
            program.give_up()
            meter.forget()
            return {"turns": turns, "exhausted": text[:1500]}
    return {"turns": turns}


def main():
    name, kind = sys.argv[1:]
    began = time.perf_counter()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a framework prints is not an answer
    framework = workloads.WORKLOADS[name].framework
    for module in workloads.modules_of(name):
        importlib.import_module(module)
    imported = time.perf_counter() - began
    begin = json.loads(sys.stdin.readline() or "null")
    if begin is None:
        return  # this worker was not needed
    began = time.perf_counter()
    meter = TorchMeter(kind, begin["limit"]) if framework == "torch" else OtherMeter(framework)
    device = Device(kind)
    before, initialized = device.used(), time.perf_counter() - began
    statistics = read_statistics()
    said = statistics()
    idle = said["physical"] - said["live"] if said else 0  # with a plan, all its memory is there at the first request
    began = time.perf_counter()
    program = workloads.make_program(name, workloads.Options(**begin["options"]), kind)
    meter.synchronize()
    print(json.dumps({"used_before": before, "idle_before": idle, "import_seconds": imported, "initialize_seconds": initialized,
                      "make_seconds": time.perf_counter() - began}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line), program, meter, device, statistics)), file=answers, flush=True)


if __name__ == "__main__":
    main()
