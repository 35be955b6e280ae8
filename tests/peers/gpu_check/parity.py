"""Logits and gradients of the trainer compared with timm's, for the same weights and images, in each precision.

The reference is timm in 64 bits. The trainer may be twice as far from it as timm in the same precision: both round, in a
different order. A mistake adds orders of magnitude more, at least in fp32.
"""

import json
import sys

from .context import Context, Outcome

TOLERANCE = 2.0
WORKER = "gpu_check.parity_worker"


def check(context: Context) -> Outcome:
    modes = ["fp32", "tf32", "bf16", "bf16-masters"] if context.on_gpu else ["fp32", "bf16", "bf16-masters"]
    model = "vit-b16-224" if context.on_gpu else "vit-ti16-224"
    result: dict = {"model": model, "tolerance": TOLERANCE, "modes": {}}
    what = [str(context.work), str(context.bundle), model, context.device]
    context.run([sys.executable, "-m", WORKER, "truth", *what], 120)
    worst = 0.0
    for mode in modes:
        errors = json.loads(context.run([sys.executable, "-m", WORKER, mode, *what], 120).splitlines()[-1])
        result["modes"][mode] = errors
        context.keep(result)
        worst = max([worst, *(error["trainer"] / error["timm"] for error in errors.values())])
    if not context.on_gpu:
        result["modes"]["tf32"] = {"why": "a CPU has no TF32"}
    message = f"the trainer is at most {worst:.2f} times as far from 64 bits as timm; the limit is {TOLERANCE:.0f}"
    return Outcome("passed" if worst <= TOLERANCE else "failed", message, result)
