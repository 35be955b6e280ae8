"""No training step makes the host wait for the device: no operator reads a value on the host. On a GPU, CUDA's sync debug
mode `error` also finds none."""

import dataclasses

from contenders import CannotRun, Case, bench

from .context import Context, Outcome

AUGMENTATION = ("data.augmentation={mixup: 0.8, cutmix: 1.0, randomErasing: 0.25, horizontalFlip: 0.5, "
                "randomResizedCrop: {minScale: 0.08}, randAugment: rand-m9-mstd0.5-inc1}")
# Options that change a step, as in the trainer's test of the operators (trainer/tests/integration/bench.rs).
VARIANTS: list[tuple[str, list[str]]] = [
    ("bf16-masters", ["training.clipGradNorm=1", "training.ema={decay: 0.9}", AUGMENTATION]),
    ("bf16", ["training.gradientAccumulationSteps=2", "training.activationCheckpointing=block"]),
    ("fp32", ["training.optimizer={name: lamb, learningRate: 0.001}", "model.dropPath=0.1"]),
    ("fp32", ["training.precision=fp16", "training.optimizer={name: sgd, learningRate: 0.001}"]),
]


def check(context: Context) -> Outcome:
    result: dict = {"sync_debug_mode": "error" if context.on_gpu else "none: there is no CUDA", "variants": []}
    failed = []
    for precision, variant in VARIANTS:
        case = Case("vit-cifar-p4" if context.on_gpu else "vit-micro", 16, precision, device=context.device)
        settings = dataclasses.replace(context.settings(2, 1, 30), set=variant)
        why = None
        try:
            bench(case, settings, "--forbid-host-stops")
        except CannotRun as error:
            why = str(error)
            failed.append(why)
        result["variants"].append({"precision": precision, "set": variant, "why": why})
        context.keep(result)
    message = failed[0] if failed else f"none in {len(VARIANTS)} kinds of step"
    return Outcome("failed" if failed else "passed", message, result)
