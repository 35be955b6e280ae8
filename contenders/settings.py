"""Which settings of a run the contenders follow. What they would not do is refused, so that none is measured at another task
than `vit-trainer`. Needs Python alone."""

from collections.abc import Iterator

# Any value is accepted: the contender follows it, or it does not change what is measured.
ANY: tuple = ()
# Fields of the run configuration, and the values that all contenders follow; of a field with a dot at its end, all below it.
FOLLOWED: dict[str, tuple] = {
    "job.": ANY,
    "model.imageSize": ANY, "model.patchSize": ANY, "model.hiddenSize": ANY, "model.depth": ANY, "model.heads": ANY,
    "model.mlpSize": ANY, "model.numClasses": ANY, "model.channels": ANY, "model.pooling": ANY,
    "model.registerTokens": ANY, "model.layerScale": ANY, "model.dropPath": ANY,
    "data.format": ("synthetic", "cifar10"),
    "data.path": ANY, "data.syntheticImages": ANY, "data.normalization.": ANY,
    "data.fraction": (1.0,),
    # Of image files.
    "data.maxCorruptFraction": ANY, "data.retrySeconds": ANY, "data.classOrder": ANY, "data.pixelType": ANY, "data.interpolation": ANY, "data.cropFraction": ANY,
    "data.augmentation.horizontalFlip": (0.0,), "data.augmentation.colorJitter": (0.0,),
    "data.augmentation.threeAugment": (False,), "data.augmentation.randomErasing": (0.0,),
    "data.augmentation.repeatedAugmentation": (1,),
    "data.augmentation.mixup": (0.0,), "data.augmentation.cutmix": (0.0,),
    "data.augmentation.mixupProbability": ANY, "data.augmentation.mixupSwitchProbability": ANY,
    "training.epochs": ANY, "training.microBatchSize": ANY, "training.gradientAccumulationSteps": ANY,
    "training.balance": ("Off",),
    "training.seed": ANY,
    "training.optimizer.name": ("adamw",),
    "training.optimizer.learningRate": ANY, "training.optimizer.weightDecay": ANY, "training.optimizer.betas": ANY,
    "training.optimizer.epsilon": ANY,
    "training.learningRateScaling.rule": ("none",),
    "training.learningRateScaling.referenceBatchSize": ANY,
    "training.layerDecay": (1.0,),
    "training.schedule.course.name": ("constant", "cosine"),
    "training.schedule.warmupEpochs": ANY, "training.schedule.minLearningRate": ANY,
    "training.loss": ("crossEntropy",),
    "training.labelSmoothing": ANY,
    # Changes what is told alone.
    "training.wallClockBreakdown": ANY,
    "training.precision": ("fp32", "bf16"),
    "training.masterWeights": (False,),
    "training.tf32": ANY,
    "training.attentionBackend": ("flash",),
    # Of fp16.
    "training.lossScale.": ANY,
    "training.activationCheckpointing": ("none",),
    "parallelism.zeroStage": (0,),
    # Of stage 3.
    "parallelism.reshardAfterForward": ANY,
    "parallelism.shardWithinNode": (False,),
    "parallelism.sequence": (1,),
    "parallelism.tensor": (1,),
    "parallelism.acrossNodes": ANY,
    "parallelism.offload.optimizer": ("None",),
    # Changes no result.
    "parallelism.bucketMegabytes": ANY,
    "parallelism.compressGradients": ("none",),
    "nodes": ANY, "ranksPerNode": ANY, "device": ANY,
    # Nothing is checkpointed.
    "checkpoint.": ANY,
    "measure.": ANY,
}
# What single contenders follow in addition.
DIVIDED: dict[str, dict[str, tuple]] = {
    "ddp": {},
    "accelerate": {},
    # Weights in half precision are what its mixed precision is.
    "fsdp2": {"parallelism.zeroStage": (3,), "training.masterWeights": (False, True)},
    "deepspeed": {"parallelism.zeroStage": (0, 1, 2, 3), "parallelism.reshardAfterForward": (True,)},
    "tensor": {"parallelism.tensor": ANY},
}


class Unsupported(Exception):
    """A setting that a contender would not follow."""


def fields(config: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """All of a configuration, such as `training.optimizer.name`, with their values."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def check(config: dict, trainer: str) -> None:
    """Raises `Unsupported` for the first setting that the trainer would not follow."""
    followed = FOLLOWED | DIVIDED[trainer]
    groups = tuple(name for name in followed if name.endswith("."))
    for field, value in fields(config):
        if field.startswith(groups):
            continue
        if field not in followed:
            raise Unsupported(f"{field} is {value}: must be left out")
        if followed[field] and value not in followed[field]:
            raise Unsupported(f"{field} is {value}: must be {' or '.join(map(str, followed[field]))}")
    if config["data"]["format"] == "cifar10" and config["model"]["imageSize"] != 32:
        raise Unsupported(f"model.imageSize is {config['model']['imageSize']}: must be 32 for cifar10")
    world_size, tensor = config["nodes"] * config["ranksPerNode"], config["parallelism"]["tensor"]
    if trainer == "tensor" and tensor != world_size:
        raise Unsupported(f"parallelism.tensor is {tensor}: must be {world_size}, the number of ranks")
