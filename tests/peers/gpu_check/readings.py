"""What the trainer's log tells of the GPU beside what nvidia-smi tells while a job trains."""

import json
import statistics
import subprocess

from contenders import Case

from .context import Context, Outcome
from .manifest import manifest

# Field of the log, nvidia-smi's name and unit in it, and how far apart the medians may be: as shares, or in the unit.
FIELDS = {
    "utilization": ("utilization.gpu", 0.01, 0.05),
    "memoryUsedBytes": ("memory.used", 2**20, 64 * 2**20),
    "temperatureCelsius": ("temperature.gpu", 1.0, 3.0),
    "powerWatts": ("power.draw", 1.0, 40.0),
}


def of_log(context: Context) -> list[dict]:
    """Rank 0's lines about steps."""
    file, checkpoints = context.work / "readings.yaml", context.work / "checkpoints"
    case, images = Case("vit-micro", 16, "fp32"), 512
    if context.on_gpu:
        case, images = Case("vit-b16-224", 128, "bf16-masters", device="cuda"), 30_000
    file.write_text(json.dumps(manifest("readings", case, {"format": "synthetic", "syntheticImages": images})))
    context.run([context.trainer, "run", "-f", str(file), "--checkpoints", str(checkpoints)], 60)
    lines = map(json.loads, (checkpoints / "readings/log.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "train"]


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of the busy half: the start and the end of a job leave a GPU idle."""
    busy = sorted(rows, key=lambda row: row["powerWatts"])[len(rows) // 2:]
    return {name: statistics.median(row[name] for row in busy) for name in FIELDS}


def check(context: Context) -> Outcome:
    if not context.on_gpu:
        told = [line for line in of_log(context) if "gpu" in line]
        return Outcome("failed" if told else "passed", "a log without a GPU tells of none")
    query = ",".join(name for name, _, _ in FIELDS.values())
    # The job's only rank has the first GPU.
    command = ["nvidia-smi", "--id=0", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--loop=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        try:
            lines = of_log(context)
        finally:
            tool.terminate()
        rows = [[float(value) for value in row.split(",")] for row in tool.stdout.read().splitlines()]
    readings = [line["gpu"] for line in lines if "gpu" in line]
    units = [unit for _, unit, _ in FIELDS.values()]
    beside = [dict(zip(FIELDS, (value * unit for value, unit in zip(row, units)))) for row in rows]
    ours, theirs = medians(readings), medians(beside)
    apart = [name for name, (_, _, most) in FIELDS.items() if abs(ours[name] - theirs[name]) > most]
    reasons = sorted({reason for reading in readings for reason in reading.get("throttledBy", [])})
    result = {"trainer": ours, "nvidia-smi": theirs, "readings": len(readings), "throttled_by": reasons}
    if apart:
        return Outcome("failed", f"the log and nvidia-smi differ in {', '.join(apart)}", result)
    told = (f"load {ours['utilization']:.2f}, {ours['memoryUsedBytes'] / 2**20:.0f} MiB, "
            f"{ours['temperatureCelsius']:.0f} °C, {ours['powerWatts']:.0f} W, held down by {reasons or 'nothing'}")
    return Outcome("passed", told, result)
