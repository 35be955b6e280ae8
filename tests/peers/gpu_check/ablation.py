"""The speedup from each of Meta's optimizations for training ViT-H/16, added in the order of its article (Engineering at
Meta, 5 May 2022): half precision, sharding, a multi-tensor optimizer, a pooled classifier, weights in half precision."""

from contenders import CannotRun, Case, Contender, Peer, measure_ours

from .context import Context, NotRun, Outcome

# Name, precision, pooling, the peer's optimizer. The trainer's optimizer is always fused.
ROWS = [
    ("fp32", "fp32", "token", "loop"),
    ("half precision", "bf16", "token", "loop"),
    ("multi-tensor optimizer", "bf16", "token", "fused"),
    ("pooled classifier", "bf16", "average", "fused"),
    ("half weights", "bf16-masters", "average", "fused"),
]
NO_SHARDING = "not run: a single rank cannot shard"
FUSED_ALREADY = "not run: the trainer's optimizer is already fused in the rows above"


def measured(context: Context, contender: Contender, case: Case) -> dict:
    try:
        settings = context.settings(8 if context.on_gpu else 3, 3 if context.on_gpu else 1, 40)
        return {"images_per_second": contender(case, settings, ())["images_per_second"]}
    except (CannotRun, NotRun) as error:
        return {"why": str(error)}


def add_gains(of_contender: dict[str, dict]) -> None:
    """Adds to each row its speed relative to the first one's."""
    first = of_contender["fp32"].get("images_per_second")
    for row in of_contender.values():
        if first and "images_per_second" in row:
            row["gain"] = row["images_per_second"] / first


def check(context: Context) -> Outcome:
    model, batch = ("vit-l16-224", 64) if context.on_gpu else ("vit-micro", 16)
    result: dict[str, dict[str, dict]] = {"trainer": {}, "eager": {}}
    for contender, rows in result.items():
        for name, precision, pooling, optimizer in ROWS:
            case = Case(model, batch, precision, device=context.device, pooling=pooling)
            if contender == "eager":
                rows[name] = measured(context, Peer("module", optimizer=optimizer), case)
            elif name == "multi-tensor optimizer":
                rows[name] = {"why": FUSED_ALREADY}
            else:
                rows[name] = measured(context, measure_ours, case)
            if name == "half precision":
                rows["sharding"] = {"why": NO_SHARDING}
            add_gains(rows)
            context.keep({"model": model, "batch": batch, **result})
    gains = [f"{contender} {rows['half weights']['gain']:.2f}"
             for contender, rows in result.items() if "gain" in rows["half weights"]]
    message = f"{model} b{batch}, total speedup over fp32: {', '.join(gains) or 'not measured'}"
    return Outcome("measured" if gains else "failed", message, {"model": model, "batch": batch, **result})
