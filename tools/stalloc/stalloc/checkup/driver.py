# SPDX-License-Identifier: Apache-2.0
"""Checks that the NVIDIA driver and its devices have all that serving needs."""

import os
import pathlib

from stalloc import terminal
from stalloc.checkup.finding import GOOD, NOTE, PROBLEM, WARNING, Finding

OLDEST = 12000  # a driver before CUDA 12.0 lacks functions that the library needs
CONTAINER = "In a container, start it with the GPUs: docker run --gpus all ..., or ask Slurm or Kubernetes for one"
# The codes that cuInit returns: what each means, and what to do about it.
INIT_ERRORS = {
    34: ("the libcuda.so.1 that is found is the toolkit's stub", "Take the folder of stubs out of LD_LIBRARY_PATH"),
    100: ("the driver sees no device", "Check CUDA_VISIBLE_DEVICES and nvidia-smi. " + CONTAINER),
    802: ("the driver is not ready yet", "Check that the fabric manager runs: systemctl status nvidia-fabricmanager"),
    803: ("libcuda.so.1 and the kernel's driver are of different versions",
          "Restart the machine after a driver update, or the container where it was updated around it"),
    804: ("this driver is too old for the CUDA of this container", "Update the driver, or use an older CUDA image"),
    999: ("the driver failed without a reason", "Check dmesg and nvidia-smi"),
}
MPS_ERRORS = range(805, 811)


def findings(answer, variables, root=""):
    """`answer` is that of the probe `devices`; `root` is a folder that stands for /, without a slash at its end."""
    if "error" in answer:
        yield of_error(answer["error"])
        return
    version = answer["version"]
    text = f"CUDA {version // 1000}.{version % 1000 // 10}{kernel_module(root)}"
    if version < OLDEST:
        yield Finding("driver", PROBLEM, text + ": too old to serve memory", "Update it: CUDA 12.0 or newer is needed")
    else:
        yield Finding("driver", GOOD, text)
    if not answer["devices"]:
        yield Finding("driver", PROBLEM, "it has no device", INIT_ERRORS[100][1])
    for ordinal, device in enumerate(answer["devices"]):
        yield of_device(f"device {ordinal}", device)
    yield from of_sharing(answer["devices"], variables, root)


def of_error(error):
    if "python" in error:
        return Finding("driver", PROBLEM, f"it was not looked at: {error['why']}", "Name a Python that runs: stalloc doctor "
                       "--python /path/to/python")
    if error.get("missing"):
        return Finding("driver", PROBLEM, f"no NVIDIA driver here ({error['why']})",
                       "Install NVIDIA's driver for Linux. " + CONTAINER)
    code = error.get("code")
    if code in MPS_ERRORS:
        return Finding("driver", PROBLEM, f"the MPS server does not answer (error {code})",
                       "Restart it (nvidia-cuda-mps-control), or unset CUDA_MPS_PIPE_DIRECTORY")
    if code in INIT_ERRORS:
        text, advice = INIT_ERRORS[code]
        return Finding("driver", PROBLEM, f"{text} (error {code})", advice)
    why = f"{error['call']} returned {code}" if code is not None else error["why"]
    return Finding("driver", PROBLEM, f"the driver does not work: {why}", "Check nvidia-smi and dmesg")


def kernel_module(root):
    """The version of the kernel's driver, as " (580.95.05)"; empty where there is none."""
    try:
        words = pathlib.Path(root + "/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
    except OSError:
        return ""
    versions = [word for word in words if word[0].isdigit() and word.count(".") >= 1]
    return f" (driver {versions[0]})" if versions else ""


def of_device(topic, device):
    text = f"{device['name']}, {terminal.size(device['bytes'])}"
    if not device["vmm"]:
        return Finding(topic, PROBLEM, text + ", without virtual memory management: stalloc cannot map its memory",
                       "A vGPU profile may lack it; plan for such a device with: stalloc plan --contiguous")
    if not device["pools"]:
        return Finding(topic, WARNING, text + ", without memory pools: frameworks cannot allocate each tensor by CUDA")
    return Finding(topic, GOOD, text)


def of_sharing(devices, variables, root):
    if any(" MIG " in device["name"] for device in devices):
        yield Finding("mig", NOTE, "a device is a MIG instance; stalloc was not tried on one")
    pipes = variables.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    if os.path.exists(f"{root}{pipes}/control"):
        yield Finding("mps", NOTE, f"an MPS server is set up ({pipes}); stalloc was not tried under one")
    if any(device["compute_mode"] == 3 for device in devices):
        yield Finding("driver", NOTE, "a device is in exclusive mode: one process at a time may use it")
