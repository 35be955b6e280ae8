"""One rank trains examples/digits.yaml to accuracy: over NCCL on a GPU, over Gloo on a CPU."""

import json

from .context import Context, Outcome

# Epochs and the held-out accuracy that they must reach. A CPU gets fewer epochs, to save time.
GOALS = {"cuda": (40, 0.97), "cpu": (8, 0.9)}


def check(context: Context) -> Outcome:
    epochs, goal = GOALS[context.device]
    job = json.loads((context.bundle / "data/digits.json").read_text())
    job["spec"]["training"]["epochs"] = epochs
    job["spec"]["workers"] = {"nodes": 1, "gpusPerNode": 1, "device": context.device}
    file, checkpoints = context.work / "digits.yaml", context.work / "checkpoints"
    file.write_text(json.dumps(job))
    context.run([context.trainer, "run", "-f", str(file), "--data", str(context.bundle / "data/digits"),
                 "--checkpoints", str(checkpoints)], 120)
    log = (checkpoints / job["metadata"]["name"] / "log.jsonl").read_text()
    evaluations = [line for line in map(json.loads, log.splitlines()) if line["kind"] == "evaluation"]
    accuracy = evaluations[-1]["accuracy"]
    message = f"held-out accuracy {accuracy:.3f} after {epochs} epochs; the goal is {goal}"
    return Outcome("passed" if accuracy >= goal else "failed", message, {"accuracy": accuracy, "epochs": epochs})
