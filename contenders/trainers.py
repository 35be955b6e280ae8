"""The compared ways to train timm's model, each with the settings of a careful user."""

from __future__ import annotations

import contextlib
import dataclasses
import os

import torch
import torch.distributed as dist
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_weight_decay
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import divided
from settings import Unsupported, loss_scale


@dataclasses.dataclass(frozen=True)
class Place:
    """This rank and its device."""

    rank: int
    world_size: int
    device: torch.device
    # Ranks of a replica compute a model together, on the same images.
    replica: int
    replicas: int

    @staticmethod
    def find(config: dict) -> Place:
        """From torchrun's environment variables."""
        rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        device = torch.device("cpu")
        if config["device"] == "cuda" or config["device"] == "auto" and torch.cuda.is_available():
            device = torch.device("cuda", local_rank)
            torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = config["training"]["tf32"]
        torch.backends.cudnn.allow_tf32 = config["training"]["tf32"]
        tensor = config["parallelism"]["tensor"]
        return Place(rank, world_size, device, rank // tensor, world_size // tensor)


class Trainer:
    """A model and its training step. Subclasses create model and optimizer."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, config: dict, place: Place):
        self.config, self.place = config, place
        self.accumulation = config["training"]["gradientAccumulationSteps"]
        self.smoothing = config["training"]["labelSmoothing"]
        self.precision = config["training"]["precision"]
        self.scaler = torch.amp.GradScaler(place.device.type, **self.scaling(), enabled=self.precision == "fp16")

    def new_model(self) -> torch.nn.Module:
        sizes = self.config["model"]
        has_class_token = sizes["pooling"] == "token"
        # timm rounds the product of ratio and width down.
        with self.place.device:
            return VisionTransformer(
                img_size=sizes["imageSize"], patch_size=sizes["patchSize"], in_chans=sizes["channels"],
                num_classes=sizes["numClasses"], embed_dim=sizes["hiddenSize"], depth=sizes["depth"],
                num_heads=sizes["heads"], mlp_ratio=(sizes["mlpSize"] + 0.5) / sizes["hiddenSize"],
                reg_tokens=sizes["registerTokens"], no_embed_class=sizes["registerTokens"] > 0,
                init_values=sizes.get("layerScale"), drop_path_rate=sizes["dropPath"], class_token=has_class_token,
                global_pool="token" if has_class_token else "avg")

    def new_optimizer(self, model: torch.nn.Module) -> torch.optim.AdamW:
        settings = self.config["training"]["optimizer"]
        groups = param_groups_weight_decay(model, settings["weightDecay"], model.no_weight_decay())
        return torch.optim.AdamW(divided.split_groups(groups), lr=settings["learningRate"], betas=tuple(settings["betas"]),
                                 eps=settings["epsilon"], fused=True)

    def scaling(self) -> dict[str, float]:
        """GradScaler's settings. It doubles the scale a step sooner than vit-trainer and DeepSpeed."""
        scale = loss_scale(self.config)
        return {"init_scale": 2.0 ** scale["initialScalePower"], "growth_interval": scale["lossScaleWindow"]}

    def backend(self) -> str:
        return "nccl" if self.place.device.type == "cuda" else "gloo"

    def set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        is_half, half = self.precision != "fp32", torch.float16 if self.precision == "fp16" else torch.bfloat16
        with torch.autocast(self.place.device.type, dtype=half, enabled=is_half):
            return self.model(images).float()

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss of a micro-batch, and its logits."""
        logits = self.logits(images)
        return cross_entropy(logits, labels, label_smoothing=self.smoothing), logits

    def micro_batch(
        self, images: torch.Tensor, labels: torch.Tensor, is_last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and logits of a micro-batch. Gradients accumulate; the last micro-batch of a step updates the weights."""
        with self.synchronized(is_last):
            loss, logits = self.loss(images, labels)
            self.scaler.scale(loss / self.accumulation).backward()
        if is_last:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        return loss, logits

    def synchronized(self, is_last: bool) -> contextlib.AbstractContextManager:
        """Averages gradients over the replicas if the micro-batch is the last one."""
        return contextlib.nullcontext()


def bucket_megabytes(config: dict) -> float | None:
    """None for the default size: DDP uses a small first bucket only if no size is set."""
    megabytes = config["parallelism"]["bucketMegabytes"]
    return None if megabytes == 25 else megabytes


class Ddp(Trainer):
    """torch.nn.parallel.DistributedDataParallel."""

    def __init__(self, config: dict, place: Place):
        super().__init__(config, place)
        if place.world_size > 1:
            dist.init_process_group(self.backend())
        self.model = self.new_model()
        self.optimizer = self.new_optimizer(self.model)
        if place.world_size > 1:
            self.model = DistributedDataParallel(
                self.model, device_ids=[place.device.index] if place.device.type == "cuda" else None,
                bucket_cap_mb=bucket_megabytes(config), gradient_as_bucket_view=True, broadcast_buffers=False)

    def synchronized(self, is_last: bool) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if is_last or self.place.world_size == 1 else self.model.no_sync()


class ShardedTrainer(Trainer):
    """A model sharded over all ranks. Subclasses shard it, and create the optimizer."""

    def __init__(self, config: dict, place: Place):
        super().__init__(config, place)
        dist.init_process_group(self.backend())
        self.mesh = init_device_mesh(place.device.type, (place.world_size,))
        self.model = self.new_model()


class Fsdp2(ShardedTrainer):
    """torch.distributed.fsdp.fully_shard, block by block."""

    def __init__(self, config: dict, place: Place):
        super().__init__(config, place)
        self.has_half_weights = config["training"]["masterWeights"]
        precision = torch.bfloat16 if self.has_half_weights else torch.float32
        divided.shard(self.model, self.mesh, config["parallelism"]["reshardAfterForward"], precision)
        self.optimizer = self.new_optimizer(self.model)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images).float() if self.has_half_weights else super().logits(images)

    def synchronized(self, is_last: bool) -> contextlib.AbstractContextManager:
        self.model.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()


class TensorParallel(ShardedTrainer):
    """Megatron's tensor parallelism by DTensor over all ranks."""

    def __init__(self, config: dict, place: Place):
        super().__init__(config, place)
        divided.divide_heads(self.model, self.mesh)
        self.optimizer = self.new_optimizer(self.model)


class DeepSpeed(Trainer):
    """DeepSpeed at any stage of ZeRO."""

    def __init__(self, config: dict, place: Place):
        super().__init__(config, place)
        if place.device.type == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"
        # The import needs seconds, and DS_ACCELERATOR.
        import deepspeed

        deepspeed.init_distributed(dist_backend=self.backend())
        model = self.new_model()
        settings = {
            "train_micro_batch_size_per_gpu": config["training"]["microBatchSize"],
            "gradient_accumulation_steps": self.accumulation,
            "zero_optimization": {"stage": config["parallelism"]["zeroStage"]},
            "zero_allow_untested_optimizer": True,
            # The default is 1.
            "gradient_clipping": 0.0,
            "steps_per_print": 1_000_000_000,
        }
        if self.precision == "fp16":
            scale = loss_scale(config)
            settings["fp16"] = {
                "enabled": True, "initial_scale_power": scale["initialScalePower"],
                "loss_scale_window": scale["lossScaleWindow"], "hysteresis": scale["hysteresis"],
                "min_loss_scale": scale["minLossScale"],
            }
        elif self.precision == "bf16":
            # Gradients are never reduced in half precision.
            settings["torch_autocast"] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
        self.model, self.optimizer, *_ = deepspeed.initialize(
            model=model, optimizer=self.new_optimizer(model), config=settings, dist_init_required=False)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        # The engine casts, except the images of a model in fp16.
        return self.model(images.half() if self.precision == "fp16" else images).float()

    def micro_batch(
        self, images: torch.Tensor, labels: torch.Tensor, is_last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The engine counts micro-batches and divides the loss.
        loss, logits = self.loss(images, labels)
        self.model.backward(loss)
        self.model.step()
        return loss, logits


class Accelerate(Trainer):
    """Hugging Face Accelerate, which wraps DistributedDataParallel."""

    def __init__(self, config: dict, place: Place):
        super().__init__(config, place)
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs, GradScalerKwargs

        if self.precision == "fp16" and place.device.type == "cpu":
            raise Unsupported("training.precision is fp16: Accelerate computes in fp32 on CPUs")
        ddp = DistributedDataParallelKwargs(
            bucket_cap_mb=bucket_megabytes(config), gradient_as_bucket_view=True, broadcast_buffers=False)
        self.accelerator = Accelerator(
            cpu=place.device.type == "cpu", mixed_precision="no" if self.precision == "fp32" else self.precision,
            gradient_accumulation_steps=self.accumulation, kwargs_handlers=[ddp, GradScalerKwargs(**self.scaling())])
        model = self.new_model()
        self.model, self.optimizer = self.accelerator.prepare(model, self.new_optimizer(model))

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        # The prepared model's forward pass casts.
        return self.model(images).float()

    def micro_batch(
        self, images: torch.Tensor, labels: torch.Tensor, is_last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # `accumulate` counts micro-batches; `step` and `zero_grad` have an effect only at the last one.
        with self.accelerator.accumulate(self.model):
            loss, logits = self.loss(images, labels)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss, logits


TRAINERS: dict[str, type[Trainer]] = {
    "ddp": Ddp, "fsdp2": Fsdp2, "tensor": TensorParallel, "deepspeed": DeepSpeed, "accelerate": Accelerate,
}
