"""One rank of a peer: the same training step as `vit-trainer bench` takes, by PyTorch's DistributedDataParallel or by
DeepSpeed, on timm's model. Started by torchrun; bench_trainer.py says what to measure in the variable PEER_PLAN.

Settings are those a careful user picks: fused AdamW, gradients as views of buckets, no synchronisation with the host in
a step, data on the device as bytes. What is timed, and how, is `train/bench.rs`, line for line.
"""

import contextlib
import json
import os
import pathlib
import statistics
import time

PLAN = json.loads(os.environ["PEER_PLAN"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

import timm.models.vision_transformer as vit  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from timm.optim import param_groups_weight_decay  # noqa: E402

ON_GPU = PLAN["device"] == "cuda"
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")
# Distinct images, in steps; as many as the trainer's.
SYNTHETIC_STEPS = 8


def make_model():
    """timm's model, with the sizes of the plan."""
    sizes = PLAN["model"]
    return vit.VisionTransformer(
        img_size=sizes["imageSize"], patch_size=sizes["patchSize"], embed_dim=sizes["hiddenSize"],
        depth=sizes["depth"], num_heads=sizes["heads"], num_classes=sizes["numClasses"],
    ).to(DEVICE)


def make_optimizer(model):
    return torch.optim.AdamW(param_groups_weight_decay(model, 0.05), lr=1e-3, fused=True)


def autocast():
    if PLAN["precision"] == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(PLAN["device"], dtype=torch.bfloat16)


class Data:
    """Random images as bytes on the device, and their labels."""

    def __init__(self):
        sizes, count = PLAN["model"], SYNTHETIC_STEPS * PLAN["batch"]
        side = sizes["imageSize"]
        self.images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8).to(DEVICE)
        self.labels = torch.randint(sizes["numClasses"], (count,)).to(DEVICE)
        self.at = 0

    def next(self):
        if self.at % SYNTHETIC_STEPS == 0:
            self.order = torch.randperm(len(self.labels)).to(DEVICE)
        start = self.at % SYNTHETIC_STEPS * PLAN["batch"]
        rows = self.order[start:start + PLAN["batch"]]
        self.at += 1
        return self.images[rows].float().div_(127.5).sub_(1.0), self.labels[rows]


class LastGradient:
    """When a backward pass had this rank's last gradient: right after it, what is left is waiting for averages."""

    def __init__(self, model):
        self.time = None
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, _):
        self.time = time.perf_counter()


class Ddp:
    """torch.nn.parallel.DistributedDataParallel, eager or compiled."""

    def __init__(self):
        model = make_model()
        self.optimizer = make_optimizer(model)
        self.ddp = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[DEVICE.index] if ON_GPU else None, gradient_as_bucket_view=True,
            broadcast_buffers=False)
        self.model = self.ddp
        if PLAN["compile"]:
            mode = None if PLAN["compile"] == "default" else PLAN["compile"]
            self.model = torch.compile(self.ddp, mode=mode)
        self.last_gradient = LastGradient(model)

    def step(self, images, labels, synchronize):
        """One step. Gives the seconds from the last gradient to averages of all of them."""
        with contextlib.nullcontext() if synchronize else self.ddp.no_sync():
            with autocast():
                loss = torch.nn.functional.cross_entropy(self.model(images), labels)
            loss.backward()
        waited = time.perf_counter() - self.last_gradient.time
        self.optimizer.step()
        self.optimizer.zero_grad()
        return waited


class DeepSpeed:
    """DeepSpeed with the study's settings: ZeRO stage 0, which reduces all gradients after the backward pass."""

    def __init__(self):
        import deepspeed
        model = make_model()
        config = {
            "train_micro_batch_size_per_gpu": PLAN["batch"],
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": 0},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 1_000_000,
        }
        if PLAN["precision"] != "fp32":
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=make_optimizer(model), config=config, dist_init_required=False)
        self.last_gradient = LastGradient(model)

    def step(self, images, labels, synchronize):
        loss = torch.nn.functional.cross_entropy(self.engine(images), labels)
        self.engine.enable_backward_allreduce = synchronize
        self.engine.backward(loss)
        waited = time.perf_counter() - self.last_gradient.time
        self.engine.step()
        return waited


def peak_resident_bytes():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def wait_for_device():
    if ON_GPU:
        torch.cuda.synchronize()


def main():
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    backend = "nccl" if ON_GPU else "gloo"
    if PLAN["peer"] == "deepspeed":
        import deepspeed
        deepspeed.init_distributed(dist_backend=backend)
    else:
        dist.init_process_group(backend)
    torch.manual_seed(RANK)
    peer = DeepSpeed() if PLAN["peer"] == "deepspeed" else Ddp()
    data = Data()

    waits = []

    def step(synchronize=True):
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
    # A GPU's gradients come later than the calls that ask for them.
    exposed = None if ON_GPU or WORLD == 1 else sum(waits) / seconds

    share = None
    if PLAN["pairs"] and WORLD > 1:
        times = {True: [], False: []}
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
        "images_per_second": PLAN["batch"] * PLAN["steps"] / seconds,
        "step_ms_p50": statistics.median(durations) * 1e3,
        "exposed_sync_share": exposed,
        "sync_share_by_difference": share,
        "seconds_to_first_step": seconds_to_first_step,
        "peak_rss_bytes": peak_resident_bytes(),
        "peak_device_bytes": torch.cuda.max_memory_allocated() if ON_GPU else None,
    }
    pathlib.Path(PLAN["folder"], f"rank-{RANK}.json").write_text(json.dumps(result))
    dist.barrier()
    # Without waiting for threads of compilers and process groups.
    os._exit(0)


main()
