"""Peak memory of the trainer in the cases of the speed check, compared with timm's model in eager mode and, on a GPU, with
the estimate of `vit-trainer plan`."""

import contextlib
import json

from contenders import Case

from .context import Context, NotRun, Outcome
from .manifest import manifest
from .speed import memory_of, name_of, on_gpu

# Between estimate and measurement: enough to separate a strategy that fits from one that does not.
TOLERANCE = 0.15


def calculated(context: Context, case: Case) -> float:
    """Estimated bytes on the GPU of one rank."""
    file = context.work / "plan.yaml"
    file.write_text(json.dumps(manifest("plan", case, {"format": "synthetic", "syntheticImages": 1_000_000})))
    output = context.run([context.trainer, "plan", "-f", str(file), "--ranks", "1", "--memory", "1Ti", "--json"], 20)
    return next(strategy["totalBytes"] for strategy in json.loads(output) if strategy["zeroStage"] == 0)


def check(context: Context) -> Outcome:
    to_eager, to_plan = {}, {}
    cases = {name_of(case): case for case, _ in on_gpu()}
    for name, contenders in context.results.get("speed", {}).items():
        ours, eager = (memory_of(contenders.get(contender, {})) for contender in ("trainer", "eager"))
        if ours and eager:
            to_eager[name] = ours / eager
        if ours and context.on_gpu:
            with contextlib.suppress(NotRun):
                to_plan[name] = ours / calculated(context, cases[name])
    if not to_eager:
        raise NotRun("the speed check measured no case with both the trainer and eager")
    what = "device memory" if context.on_gpu else "resident memory"
    message = f"peak {what} relative to eager: {', '.join(f'{name} {ratio:.2f}' for name, ratio in to_eager.items())}"
    result = {"what": what, "ratio_to_eager": to_eager, "ratio_to_plan": to_plan}
    if not to_plan:
        return Outcome("measured", message, result)
    worst = max(to_plan.values(), key=lambda ratio: abs(ratio - 1))
    message += f"; relative to plan's estimate: {worst:.2f} at worst"
    return Outcome("passed" if abs(worst - 1) <= TOLERANCE else "failed", message, result)
