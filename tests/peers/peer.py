"""One rank of a peer: the training step of `vit-trainer bench` on timm's model, with plain PyTorch, DistributedDataParallel,
FSDP2, tensor parallelism, or DeepSpeed. Started directly or by torchrun; the variable PEER_PLAN, set by contenders.py, says
what to measure.

The settings are those of a careful user: fused AdamW, gradients as views of buckets, no synchronization with the host
within a step, data on the device as bytes. Timing follows `train/measure.rs` line by line.
"""

import contextlib
import copy
import json
import os
import pathlib
import statistics
import time

PLAN = json.loads(os.environ["PEER_PLAN"])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from timm_vit import make_model, param_groups_weight_decay  # noqa: E402

ON_GPU = PLAN["device"] == "cuda"
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if ON_GPU else torch.device("cpu")
# Distinct images, in steps; the same number as the trainer's.
SYNTHETIC_STEPS = 8


def new_model() -> torch.nn.Module:
    # Initialized on its device: on the CPU a large model would need many seconds.
    with DEVICE:
        return make_model(PLAN["model"])


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    fused = PLAN["optimizer"] == "fused"
    groups = param_groups_weight_decay(model, 0.05)
    if PLAN["peer"] == "tensor":
        import divided
        groups = divided.split_groups(groups)
    return torch.optim.AdamW(groups, lr=1e-3, fused=fused, foreach=False)


class MasterWeights:
    """Converts a model to bfloat16 and trains master weights in 32 bits, which are copied to it."""

    def __init__(self, model: torch.nn.Module):
        masters = copy.deepcopy(model)
        self.optimizer = make_optimizer(masters)
        self.masters, self.weights = list(masters.parameters()), list(model.to(torch.bfloat16).parameters())
        for master in self.masters:
            master.grad = torch.zeros_like(master)

    @torch.no_grad()
    def step(self) -> None:
        torch._foreach_copy_([master.grad for master in self.masters], [weight.grad for weight in self.weights])
        self.optimizer.step()
        torch._foreach_copy_(self.weights, self.masters)

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None


def make_updates(model: torch.nn.Module) -> torch.optim.Optimizer | MasterWeights:
    """The optimizer, with master weights if the plan has them."""
    return MasterWeights(model) if PLAN["precision"] == "bf16-masters" else make_optimizer(model)


def autocast() -> contextlib.AbstractContextManager:
    if PLAN["precision"] == "bf16":
        return torch.autocast(PLAN["device"], dtype=torch.bfloat16)
    return contextlib.nullcontext()


def compiled(model: torch.nn.Module) -> torch.nn.Module:
    if PLAN["compile"] is None:
        return model
    return torch.compile(model, mode=None if PLAN["compile"] == "default" else PLAN["compile"])


class Data:
    """Random images as bytes on the device, and their labels."""

    def __init__(self) -> None:
        sizes, count = PLAN["model"], SYNTHETIC_STEPS * PLAN["batch"]
        side = sizes["imageSize"]
        self.images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8).to(DEVICE)
        self.labels = torch.randint(sizes["numClasses"], (count,)).to(DEVICE)
        self.at = 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.at % SYNTHETIC_STEPS == 0:
            self.order = torch.randperm(len(self.labels)).to(DEVICE)
        start = self.at % SYNTHETIC_STEPS * PLAN["batch"]
        rows = self.order[start:start + PLAN["batch"]]
        self.at += 1
        images = self.images[rows].float().div_(127.5).sub_(1.0)
        if PLAN["precision"] == "bf16-masters":
            images = images.to(torch.bfloat16)
        return images, self.labels[rows]


class LastGradient:
    """Time of this rank's last gradient in a backward pass: the rest of the pass is waiting for averages."""

    def __init__(self, model: torch.nn.Module):
        self.time = 0.0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, _: torch.Tensor) -> None:
        self.time = time.perf_counter()


class Module:
    """A single-rank model, eager or compiled."""

    def __init__(self) -> None:
        model = new_model()
        self.updates = make_updates(model)
        self.model = compiled(model)

    def step(self, images: torch.Tensor, labels: torch.Tensor, _: bool) -> float:
        """One step, without waiting for averages."""
        with autocast():
            loss = torch.nn.functional.cross_entropy(self.model(images).float(), labels)
        loss.backward()
        self.updates.step()
        self.updates.zero_grad()
        return 0.0


class Ddp:
    """torch.nn.parallel.DistributedDataParallel, eager or compiled."""

    def __init__(self) -> None:
        model = new_model()
        self.updates = make_updates(model)
        self.ddp = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[DEVICE.index] if ON_GPU else None, gradient_as_bucket_view=True,
            broadcast_buffers=False)
        self.model = compiled(self.ddp)
        self.last_gradient = LastGradient(model)

    def step(self, images: torch.Tensor, labels: torch.Tensor, synchronize: bool) -> float:
        """One step. Returns the seconds from the last gradient until all are averaged."""
        with contextlib.nullcontext() if synchronize else self.ddp.no_sync():
            with autocast():
                loss = torch.nn.functional.cross_entropy(self.model(images).float(), labels)
            loss.backward()
        waited = time.perf_counter() - self.last_gradient.time
        self.updates.step()
        self.updates.zero_grad()
        return waited


class Sharded:
    """FSDP2, or tensor parallelism by DTensor. Waiting time is unknown, because gradients are reduced before hooks run."""

    def __init__(self) -> None:
        import divided
        from torch.distributed.device_mesh import init_device_mesh
        # Tensor-parallel ranks have the same model and images.
        torch.manual_seed(0)
        self.model = new_model()
        mesh = init_device_mesh(PLAN["device"], (WORLD,))
        if PLAN["peer"] == "fsdp2":
            divided.shard(self.model, mesh, PLAN["parallelism"].get("reshardAfterForward", True))
            torch.manual_seed(RANK)
        else:
            divided.divide_heads(self.model, mesh)
        self.updates = make_updates(self.model)

    def step(self, images: torch.Tensor, labels: torch.Tensor, _: bool) -> float | None:
        with autocast():
            loss = torch.nn.functional.cross_entropy(self.model(images).float(), labels)
        loss.backward()
        self.updates.step()
        self.updates.zero_grad()
        return None


class DeepSpeed:
    """DeepSpeed with the study's ZeRO stage 0, which reduces all gradients after the backward pass, or another stage."""

    def __init__(self) -> None:
        import deepspeed
        model = new_model()
        config = {
            "train_micro_batch_size_per_gpu": PLAN["batch"],
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": PLAN["parallelism"].get("zeroStage", 0)},
            "zero_allow_untested_optimizer": True,
            # The default is 1.
            "gradient_clipping": 0.0,
            "steps_per_print": 1_000_000,
        }
        if PLAN["precision"] != "fp32":
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=make_optimizer(model), config=config, dist_init_required=False)
        # The other stages reduce gradients before hooks run.
        self.last_gradient = LastGradient(model) if config["zero_optimization"]["stage"] == 0 else None

    def step(self, images: torch.Tensor, labels: torch.Tensor, synchronize: bool) -> float | None:
        loss = torch.nn.functional.cross_entropy(self.engine(images), labels)
        self.engine.enable_backward_allreduce = synchronize
        self.engine.backward(loss)
        waited = time.perf_counter() - self.last_gradient.time if self.last_gradient else None
        self.engine.step()
        return waited


def peak_resident_bytes() -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def wait_for_device() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def join() -> None:
    """Joins the other ranks."""
    backend = "nccl" if ON_GPU else "gloo"
    if PLAN["peer"] == "deepspeed":
        import deepspeed
        deepspeed.init_distributed(dist_backend=backend)
    elif PLAN["peer"] != "module":
        dist.init_process_group(backend)


def main() -> None:
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    torch.backends.cuda.matmul.allow_tf32 = PLAN["precision"] == "tf32"
    join()
    torch.manual_seed(RANK)
    kinds = {"module": Module, "ddp": Ddp, "fsdp2": Sharded, "tensor": Sharded, "deepspeed": DeepSpeed}
    peer = kinds[PLAN["peer"]]()
    data = Data()

    waits: list[float | None] = []

    def step(synchronize: bool = True) -> float:
        start = time.perf_counter()
        waits.append(peer.step(*data.next(), synchronize))
        return time.perf_counter() - start

    step()
    wait_for_device()
    seconds_to_first_step = time.time() - PLAN["started"]
    for _ in range(1, PLAN["warmup_steps"]):
        step()
    wait_for_device()
    waits.clear()
    start = time.perf_counter()
    durations = [step() for _ in range(PLAN["steps"])]
    wait_for_device()
    seconds = time.perf_counter() - start
    # A GPU computes gradients later than the calls that launch them.
    exposed = None if ON_GPU or WORLD == 1 or None in waits else sum(waits) / seconds

    share = None
    if PLAN["pairs"] and WORLD > 1:
        times: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(PLAN["pairs"]):
            for synchronize in (pair % 2 == 0, pair % 2 == 1):
                dist.barrier()
                wait_for_device()
                start = time.perf_counter()
                step(synchronize)
                wait_for_device()
                times[synchronize].append(time.perf_counter() - start)
        with_sync, without = statistics.median(times[True]), statistics.median(times[False])
        share = (with_sync - without) / with_sync

    result = {
        "rank": RANK,
        # Tensor-parallel ranks have the same images.
        "images_per_second": PLAN["batch"] * PLAN["steps"] / seconds / (WORLD if PLAN["peer"] == "tensor" else 1),
        "step_ms_p50": statistics.median(durations) * 1e3,
        "exposed_sync_share": exposed,
        "sync_share_by_difference": share,
        "seconds_to_first_step": seconds_to_first_step,
        "peak_rss_bytes": peak_resident_bytes(),
        "peak_device_bytes": torch.cuda.max_memory_allocated() if ON_GPU else None,
    }
    pathlib.Path(PLAN["folder"], f"rank-{RANK}.json").write_text(json.dumps(result))
    if dist.is_initialized():
        dist.barrier()
    # Does not wait for threads of compilers and process groups.
    os._exit(0)


main()
