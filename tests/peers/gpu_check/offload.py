"""An optimizer in host memory compared with one on the device: equal losses, device memory and step time."""

import json

from contenders import Case, bench

from .context import Context, Outcome

# Images per step: enough to make steps few, so that rounding differences between the optimizers stay small.
BATCH = 128
# Between mean losses over two epochs (22 steps): far less than the effect of a missing step.
TOLERANCE = 5e-3
HOMES = ("None", "CPU")


def loss_of(context: Context, home: str, name: str, epochs: int = 2) -> float:
    """Mean training loss of examples/digits.yaml over `epochs` epochs. If a job of the same name exists, it is continued and
    the mean covers the remaining epochs."""
    job = json.loads((context.bundle / "data/digits.json").read_text())
    job["metadata"]["name"] = name
    job["spec"]["training"] |= {"epochs": epochs, "microBatchSize": BATCH, "schedule": {"name": "constant"}}
    job["spec"]["workers"] = {"nodes": 1, "gpusPerNode": 1, "device": context.device}
    job["spec"]["parallelism"] = {"offload": {"optimizer": home}}
    file, checkpoints = context.work / f"{home}.yaml", context.work / "checkpoints"
    file.write_text(json.dumps(job))
    context.run([context.trainer, "run", "-f", str(file), "--data", str(context.bundle / "data/digits"),
                 "--checkpoints", str(checkpoints)], 60)
    log = (checkpoints / job["metadata"]["name"] / "log.jsonl").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    # Each line is the mean over the steps since the one before it.
    start = [number for number, line in enumerate(lines) if line["kind"] == "start"][-1]
    trained = [line for line in lines[start:] if line["kind"] == "train"]
    return sum(line["loss"] * line["steps"] for line in trained) / sum(line["steps"] for line in trained)


def check(context: Context) -> Outcome:
    losses = {home: loss_of(context, home, f"offload-{home.lower()}") for home in HOMES}
    # Through a checkpoint, from the device to host memory.
    continued = loss_of(context, "CPU", "offload-none", 3)
    model, batch = ("vit-b16-224", 64) if context.on_gpu else ("vit-micro", 16)
    case = Case(model, batch, "bf16-masters" if context.on_gpu else "fp32", device=context.device)
    settings = context.settings(10 if context.on_gpu else 4, 3 if context.on_gpu else 1, 60)
    ranks = {home: bench(case, settings, "--set", f"parallelism.offload.optimizer={home}")["ranks"][0] for home in HOMES}
    result = {
        "losses": losses,
        "loss_continued": continued,
        "step_ms": {home: rank["step_ms"]["p50"] for home, rank in ranks.items()},
        "optimizer_seconds": {home: rank["phases"]["optimizer"] for home, rank in ranks.items()},
        "peak_device_bytes": {home: rank["peak_device_bytes"] for home, rank in ranks.items()},
    }
    on_device, offloaded = (result["peak_device_bytes"][home] for home in HOMES)
    message = (f"losses {losses['None']:.5f} and {losses['CPU']:.5f}; steps of {result['step_ms']['None']:.1f} ms and "
               f"{result['step_ms']['CPU']:.1f} ms offloaded")
    is_same = abs(losses["None"] - losses["CPU"]) < TOLERANCE and continued < losses["None"]
    if context.on_gpu:
        message += f"; {on_device / 2**20:.0f} MiB and {offloaded / 2**20:.0f} MiB of GPU memory"
    is_less = not context.on_gpu or offloaded < on_device
    return Outcome("passed" if is_same and is_less else "failed", message, result)
