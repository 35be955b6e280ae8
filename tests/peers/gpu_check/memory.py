"""Peak memory of the trainer beside that of timm's model in eager mode, as the speed check saw it."""

from .context import Context, NotRun, Outcome
from .speed import memory_of


def check(context: Context) -> Outcome:
    ratios = {}
    for name, contenders in context.results.get("speed", {}).items():
        ours, eager = (memory_of(contenders.get(contender, {})) for contender in ("trainer", "eager"))
        if ours and eager:
            ratios[name] = ours / eager
    if not ratios:
        raise NotRun("the speed check measured no case of both the trainer and eager")
    what = "device memory" if context.on_gpu else "resident memory"
    told = f"peak {what}, times eager's: {', '.join(f'{name} {ratio:.2f}' for name, ratio in ratios.items())}"
    return Outcome("measured", told, {"what": what, "ratio_to_eager": ratios})
