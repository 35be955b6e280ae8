"""A Chrome trace of one step: it has all of the step's operators and, on a GPU, shows how long the GPU is busy."""

import collections
import json

from contenders import Case, bench

from .context import Context, Outcome

OPERATORS = ("aten::scaled_dot_product_attention", "aten::_fused_adamw_")
# On a GPU: this project's kernels.
KERNELS = ("vit_layer_norm_forward", "vit_layer_norm_backward")
REPORTED_KERNELS = 12


def busy_microseconds(events: list[dict]) -> float:
    """Time in which at least one event runs."""
    busy, until = 0.0, 0.0
    for event in sorted(events, key=lambda event: event["ts"]):
        end = event["ts"] + event["dur"]
        busy += max(0.0, end - max(event["ts"], until))
        until = max(until, end)
    return busy


def device_summary(events: list[dict]) -> dict:
    """How the GPU spends its time."""
    on_device = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not on_device:
        return {"events": 0}
    times: collections.Counter[str] = collections.Counter()
    for event in on_device:
        times[event["name"][:120]] += event["dur"]
    start, end = min(event["ts"] for event in on_device), max(event["ts"] + event["dur"] for event in on_device)
    return {
        "events": len(on_device),
        "milliseconds": (end - start) / 1e3,
        "busy_share": busy_microseconds(on_device) / (end - start),
        "kernels_ms": {name: time / 1e3 for name, time in times.most_common(REPORTED_KERNELS)},
    }


def check(context: Context) -> Outcome:
    case = Case("vit-b16-224", 256, "bf16-masters", device="cuda") if context.on_gpu else Case("vit-micro", 16, "fp32")
    file = context.output.with_name("gpu-trace.json")
    bench(case, context.settings(3, 3, 60), "--trace", str(file))
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event.get("ph") == "X"]
    counted = collections.Counter(event["name"] for event in events)
    expected = OPERATORS + KERNELS if context.on_gpu else OPERATORS
    missing = [name for name in expected if not counted[name]]
    device = device_summary(events) if context.on_gpu else None
    result = {"file": file.name, "events": len(events), "missing": missing, "device": device}
    if missing or (device and not device["events"]):
        return Outcome("failed", f"{file.name} lacks {', '.join(missing) or 'GPU events'}", result)
    message = f"{len(events)} events in {file.name}"
    if device:
        message += f"; the GPU is busy {device['busy_share'] * 100:.0f} % of {device['milliseconds']:.1f} ms"
    return Outcome("passed", message, result)
