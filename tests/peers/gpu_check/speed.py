"""Images per second of the trainer and of timm's model: eager, torch.compile and max-autotune, in the same precision and
with the same optimizer (fused AdamW). Runs as many cases as the time allows, the most important first."""

import dataclasses
from collections.abc import Sequence

from contenders import CannotRun, Case, Contender, Peer, Settings, measure_ours

from .context import Context, NotRun, Outcome
from .report import lines_of


def with_cudnn(case: Case, settings: Settings, namespaces: Sequence[str]) -> dict:
    """The trainer with cuDNN attention, libtorch's choice on an H100, which the peers use."""
    return measure_ours(case, dataclasses.replace(settings, set=["training.attentionBackend=cudnn"]), namespaces)


CONTENDERS: dict[str, Contender] = {
    "trainer": measure_ours,
    "trainer, cuDNN": with_cudnn,
    "eager": Peer("module"),
    "compile": Peer("module", compile="default"),
    "max-autotune": Peer("module", compile="max-autotune"),
}
TOGETHER = ("trainer", "trainer, cuDNN", "eager", "compile")
# Time limit of each contender in seconds.
MOST = {"trainer": 45.0, "trainer, cuDNN": 45.0, "eager": 45.0, "compile": 100.0, "max-autotune": 600.0}


def on_gpu() -> list[tuple[Case, str]]:
    """The measurements in order."""
    def case(model: str, batch: int, precision: str = "bf16-masters") -> Case:
        return Case(model, batch, precision, device="cuda")

    # With a class token the trainer's last block computes only that token, but timm's all. Average pooling needs all.
    base = case("vit-b16-224", 256)
    sizes = [case("vit-ti16-224", 512), case("vit-l16-224", 128)]
    cases = [
        base, dataclasses.replace(base, pooling="average"), *sizes, case("vit-b16-224", 256, "bf16"),
        case("vit-h16-224", 64), *(case("vit-b16-224", batch) for batch in (64, 128)),
        *(case(one.model, one.batch, "bf16") for one in sizes),
    ]
    return [
        *((one, contender) for one in cases for contender in TOGETHER),
        # Needs minutes to choose its kernels.
        (base, "max-autotune"),
    ]


def on_cpu() -> list[tuple[Case, str]]:
    """Enough to show that each contender runs."""
    full, half = Case("vit-micro", 16, "fp32"), Case("vit-micro", 16, "bf16-masters")
    return [(full, "trainer"), (full, "eager"), (half, "trainer"), (half, "eager"), (full, "compile")]


def name_of(case: Case) -> str:
    pooling = "" if case.pooling == "token" else f"/{case.pooling}"
    return f"{case.model}/{case.precision}/batch-{case.batch}{pooling}"


def compare(result: dict[str, dict]) -> None:
    """Adds to each contender the trainer's speed relative to it on the same case."""
    for name, contenders in result.items():
        ours = contenders["trainer"]
        for measured in contenders.values():
            if "why" in ours or "why" in measured:
                continue
            measured["ratio"] = ours["images_per_second"] / measured["images_per_second"]
            # With a class token timm computes more per image.
            if ours["mfu"] and (measured is ours or name.endswith("/average")):
                measured["mfu"] = ours["mfu"] / measured["ratio"]


def memory_of(measured: dict) -> int | None:
    return measured.get("peak_device_bytes") or measured.get("peak_rss_bytes")


def table(result: dict) -> str:
    rows = [("case", "contender", "images/s", "trainer's ratio", "memory MB", "MFU")]
    for name, contenders in result.items():
        for contender, measured in contenders.items():
            if "why" in measured:
                rows.append((name, contender, measured["why"], "", "", ""))
                continue
            ratio, mfu = measured.get("ratio"), measured.get("mfu")
            rows.append((name, contender, f"{measured['images_per_second']:.1f}", f"{ratio:.2f}" if ratio else "",
                         f"{memory_of(measured) / 1e6:.0f}", f"{mfu * 100:.1f} %" if mfu else ""))
    return lines_of(rows)


def measure(context: Context, case: Case, contender: str, steps: int, warmup: int) -> dict:
    """The measurement, or why there is none."""
    try:
        return CONTENDERS[contender](case, context.settings(steps, warmup, MOST[contender]), ())
    except (CannotRun, NotRun) as error:
        return {"why": str(error)}


def check(context: Context) -> Outcome:
    result: dict[str, dict] = {}
    plan = on_gpu() if context.on_gpu else on_cpu()
    steps, warmup = (30, 8) if context.on_gpu else (4, 2)
    for case, contender in plan:
        result.setdefault(name_of(case), {})[contender] = measure(context, case, contender, steps, warmup)
        compare(result)
        context.keep(result)
    if not context.on_gpu:
        result[name_of(plan[0][0])]["max-autotune"] = {"why": "not run: on a CPU it equals compile"}
    measured = sum("why" not in one for contenders in result.values() for one in contenders.values())
    return Outcome("measured" if measured else "failed", f"{measured} of {len(plan)} measurements, see below", result)
