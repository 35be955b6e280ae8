"""The run settings that the contenders support. Others are refused, so that all contenders measure the same task as
`vit-trainer`. Needs only Python."""

from collections.abc import Iterator

# Any value is accepted: it is supported, or does not affect the measurement.
ANY: tuple = ()
# Fields of the run configuration, and the values that all contenders support. A trailing dot includes all subfields.
FOLLOWED: dict[str, tuple] = {
    "version": ANY, "job.": ANY,
    "model.imageSize": ANY, "model.patchSize": ANY, "model.hiddenSize": ANY, "model.depth": ANY, "model.heads": ANY,
    "model.mlpSize": ANY, "model.numClasses": ANY, "model.channels": ANY, "model.pooling": ANY,
    "model.registerTokens": ANY, "model.layerScale": ANY, "model.dropPath": ANY,
    "data.format": ("synthetic", "cifar10", "cifar100"),
    "data.path": ANY, "data.syntheticImages": ANY, "data.normalization.": ANY, "data.fraction": ANY,
    "data.interpolation": ("bilinear", "bicubic"),
    # For image files.
    "data.maxCorruptFraction": ANY, "data.retrySeconds": ANY, "data.classOrder": ANY, "data.pixelType": ANY,
    "data.cropFraction": ANY,
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
    "training.schedule.name": ("constant", "cosine"),
    "training.schedule.warmupEpochs": ANY, "training.schedule.minLearningRate": ANY,
    "training.loss": ("crossEntropy",),
    "training.labelSmoothing": ANY,
    # Changes only the output.
    "training.wallClockBreakdown": ANY,
    "training.precision": ("fp32", "bf16"),
    "training.masterWeights": (False,),
    "training.tf32": ANY,
    "training.attentionBackend": ("flash",),
    "training.activationCheckpointing": ("none",),
    "parallelism.strategy": ("Manual",),
    "parallelism.zeroStage": (0,),
    # For stage 3.
    "parallelism.reshardAfterForward": ANY,
    "parallelism.shardWithinNode": (False,),
    "parallelism.sequence": (1,),
    "parallelism.tensor": (1,),
    "parallelism.acrossNodes": ANY,
    "parallelism.offload.optimizer": ("None",), "parallelism.offload.parameters": ("None",),
    # Does not change results.
    "parallelism.bucketMegabytes": ANY,
    "parallelism.compressGradients": ("none",),
    "nodes": ANY, "ranksPerNode": ANY, "device": ANY,
    # There are no checkpoints.
    "checkpoint.": ANY,
    "measure.": ANY,
}
# What single contenders support in addition.
ADDITIONAL: dict[str, dict[str, tuple]] = {
    "ddp": {},
    "accelerate": {},
    # Its mixed precision has weights in half precision.
    "fsdp2": {"parallelism.zeroStage": (3,), "training.masterWeights": (False, True)},
    "deepspeed": {"parallelism.zeroStage": (0, 1, 2, 3), "parallelism.reshardAfterForward": (True,)},
    "tensor": {"parallelism.tensor": ANY},
}
# What some support with fp16. PyTorch's GradScaler has no minimum. Like DeepSpeed at stage 0, it halves the scale at
# every overflow.
GRAD_SCALER: dict[str, tuple] = {"training.masterWeights": (False,), "training.lossScale.minLossScale": (1,)}
FP16: dict[str, dict[str, tuple]] = {
    "ddp": GRAD_SCALER,
    "accelerate": GRAD_SCALER,
    "deepspeed": {"training.masterWeights": (True,)},
}
# A configuration without `training.lossScale` has these.
LOSS_SCALE = {"initialScalePower": 16, "lossScaleWindow": 1000, "hysteresis": 2, "minLossScale": 1}


class Unsupported(Exception):
    """A setting that a contender does not support."""


def fields(config: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """All fields of a configuration, such as `training.optimizer.name`, with their values."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def loss_scale(config: dict) -> dict[str, int]:
    """`training.lossScale` of a configuration with fp16."""
    return config["training"].get("lossScale", LOSS_SCALE)


def check(config: dict, trainer: str) -> None:
    """Raises `Unsupported` for the first setting that the trainer does not support."""
    followed = FOLLOWED | ADDITIONAL[trainer]
    if config["training"]["precision"] == "fp16" and trainer in FP16:
        followed |= FP16[trainer] | {
            "training.precision": ("fp16",), "training.lossScale.hysteresis": (1,), "training.lossScale.": ANY}
        config = config | {"training": config["training"] | {"lossScale": loss_scale(config)}}
    groups = tuple(name for name in followed if name.endswith("."))
    for field, value in fields(config):
        if field not in followed and not field.startswith(groups):
            raise Unsupported(f"{field} is {value}: must be omitted")
        values = followed.get(field, ANY)
        if values and value not in values:
            raise Unsupported(f"{field} is {value}: must be {' or '.join(map(str, values))}")
    world_size, tensor = config["nodes"] * config["ranksPerNode"], config["parallelism"]["tensor"]
    if trainer == "tensor" and tensor != world_size:
        raise Unsupported(f"parallelism.tensor is {tensor}: must be {world_size}, the number of ranks")
