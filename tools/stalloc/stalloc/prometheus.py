# SPDX-License-Identifier: Apache-2.0
"""Statistics pages in the text format that Prometheus reads (https://prometheus.io/docs/instrumenting/exposition_formats)."""

# Name, type, help, and for each figure the labels it has besides those of the process.
METRICS = (
    ("stalloc_live_bytes", "gauge", "Bytes of the program's live allocations, as requested.", {"live": {}}),
    ("stalloc_live_peak_bytes", "gauge", "Most bytes that were ever live.", {"live_peak": {}}),
    ("stalloc_physical_bytes", "gauge", "Bytes of device memory that stalloc holds.", {"physical": {}}),
    ("stalloc_physical_peak_bytes", "gauge", "Most bytes that stalloc ever held.", {"physical_peak": {}}),
    ("stalloc_device_bytes", "gauge", "Bytes of memory that the device has.", {"device_bytes": {}}),
    ("stalloc_requests_total", "counter", "Allocations, by what served them.",
     {"planned_requests": {"served_by": "plan"}, "dynamic_requests": {"served_by": "dynamic"},
      "unplanned_requests": {"served_by": "cuda"}}),
    ("stalloc_mapping_calls_total", "counter", "Calls that create, map or unmap memory.",
     {"mapping_calls_at_start": {"when": "start"}, "mapping_calls_after_start": {"when": "later"}}),
    ("stalloc_out_of_memory_total", "counter", "Requests for which stalloc found no memory, so that CUDA was asked.",
     {"misses": {}}),
)


def escaped(value):
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def labels(page, device, more):
    words = {"host": page.host, "pid": str(page.process.number), "rank": str(page.rank) if page.rank >= 0 else "",
             "device": str(device), "mode": page.mode, **more}
    return ",".join(f'{name}="{escaped(value)}"' for name, value in words.items() if value)


def text(pages):
    """All figures of the pages. Each metric is described even if no process has it."""
    lines = []
    for name, kind, meaning, figures in METRICS:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        for page in pages:
            for device, shown in page.devices.items():
                lines += [f"{name}{{{labels(page, device, more)}}} {shown[figure]}"
                          for figure, more in figures.items()]
    return "\n".join(lines) + "\n"
