"""The GPU readings in the trainer's log, compared with nvidia-smi's during training."""

import json
import statistics
import subprocess

from contenders import Case

from .context import Context, Outcome
from .manifest import manifest

# Field of the log, nvidia-smi's name, the scale of its unit, and the largest difference of the medians in the log's unit.
FIELDS = {
    "utilization": ("utilization.gpu", 0.01, 0.05),
    "memoryUsedBytes": ("memory.used", 2**20, 64 * 2**20),
    "temperatureCelsius": ("temperature.gpu", 1.0, 3.0),
    "powerWatts": ("power.draw", 1.0, 40.0),
}


def train_lines(context: Context) -> list[dict]:
    """Trains a job. Returns the lines about steps in its log."""
    file, checkpoints = context.work / "readings.yaml", context.work / "checkpoints"
    case, images = Case("vit-micro", 16, "fp32"), 512
    if context.on_gpu:
        case, images = Case("vit-b16-224", 128, "bf16-masters", device="cuda"), 30_000
    file.write_text(json.dumps(manifest("readings", case, {"format": "synthetic", "syntheticImages": images})))
    context.run([context.trainer, "run", "-f", str(file), "--checkpoints", str(checkpoints)], 60)
    lines = map(json.loads, (checkpoints / "readings/log.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "train"]


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Medians of the busy half: at the start and the end of a job a GPU is idle."""
    busy = sorted(rows, key=lambda row: row["powerWatts"])[len(rows) // 2:]
    return {name: statistics.median(row[name] for row in busy) for name in FIELDS}


def check(context: Context) -> Outcome:
    if not context.on_gpu:
        readings = [line for line in train_lines(context) if "gpu" in line]
        return Outcome("failed" if readings else "passed", "without a GPU the log has no readings")
    query = ",".join(name for name, _, _ in FIELDS.values())
    # The job's only rank has the first GPU.
    command = ["nvidia-smi", "--id=0", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--loop=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        try:
            lines = train_lines(context)
        finally:
            tool.terminate()
        rows = [[float(value) for value in row.split(",")] for row in tool.stdout.read().splitlines()]
    readings = [line["gpu"] for line in lines if "gpu" in line]
    units = [unit for _, unit, _ in FIELDS.values()]
    nvidia_smi = [dict(zip(FIELDS, (value * unit for value, unit in zip(row, units)))) for row in rows]
    ours, theirs = medians(readings), medians(nvidia_smi)
    different = [name for name, (_, _, most) in FIELDS.items() if abs(ours[name] - theirs[name]) > most]
    reasons = sorted({reason for reading in readings for reason in reading.get("throttledBy", [])})
    result = {"trainer": ours, "nvidia-smi": theirs, "readings": len(readings), "throttled_by": reasons}
    if different:
        return Outcome("failed", f"the log and nvidia-smi differ in {', '.join(different)}", result)
    message = (f"utilization {ours['utilization']:.2f}, {ours['memoryUsedBytes'] / 2**20:.0f} MiB, "
               f"{ours['temperatureCelsius']:.0f} °C, {ours['powerWatts']:.0f} W, "
               f"throttled by {', '.join(reasons) or 'nothing'}")
    return Outcome("passed", message, result)
