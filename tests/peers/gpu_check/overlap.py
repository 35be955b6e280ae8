"""The share of two ranks' communication that overlaps the backward pass: over NCCL with two GPUs, over Gloo on a CPU. Ranks
that share a GPU take turns on it, so they cannot overlap."""

import pathlib

from contenders import Case, bench

from .context import Context, NotRun, Outcome

RANKS = 2


def check(context: Context) -> Outcome:
    gpus = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
    if context.on_gpu and gpus < RANKS:
        raise NotRun(f"{RANKS} ranks need {RANKS} GPUs; this machine has {gpus}")
    model, batch = ("vit-b16-224", 64) if context.on_gpu else ("vit-micro", 16)
    case = Case(model, batch, "bf16-masters" if context.on_gpu else "fp32", RANKS, context.device)
    settings = context.settings(20 if context.on_gpu else 6, 5 if context.on_gpu else 2, 60)
    ranks = bench(case, settings, "--gpus-per-node", str(RANKS))["ranks"]
    total, exposed = (sum(rank["sync"][name] for rank in ranks) / RANKS for name in ("total", "exposed"))
    message = f"{(1 - exposed / total) * 100:.0f} % of {total * 1e3:.1f} ms a step overlaps" if total else "no communication"
    return Outcome("measured" if total else "failed", message, {"total_seconds": total, "exposed_seconds": exposed})
