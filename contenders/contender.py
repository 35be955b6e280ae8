"""Trains timm's Vision Transformer as a contender of a scaling study, with PyTorch's DistributedDataParallel, FSDP2 or
tensor parallelism, with DeepSpeed, or with Accelerate.

    torchrun contender.py ddp

Reads its configuration from $VIT_RUN_CONFIG, and refuses unsupported settings. Rank 0 writes measurements to $VIT_LOG:
loss and training accuracy of its own images, held-out accuracy of all ranks'. There are no checkpoints, so each attempt
starts from the beginning.
"""

import json
import math
import os
import pathlib
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

import data
import trainers
from settings import Unsupported, check

# A line of the log covers at least this many seconds.
INTERVAL = 0.5
# Seconds between progress lines of an evaluation.
EVALUATING_INTERVAL = 5.0
BAD_CONFIG = 2


class Log:
    """Rank 0's log; other ranks write nothing."""

    def __init__(self, is_first: bool):
        self.file = open(os.environ["VIT_LOG"], "a", encoding="utf-8") if is_first else None

    def write(self, kind: str, **fields: object) -> None:
        if self.file:
            print(json.dumps({"kind": kind, **fields}), file=self.file, flush=True)


def learning_rate(config: dict, start: float, end: float) -> float:
    """The learning rate of `vit-trainer` for a step from `start` to `end`, in epochs."""
    training = config["training"]
    schedule, peak = training["schedule"], training["optimizer"]["learningRate"]
    warmup, least = schedule["warmupEpochs"], schedule["minLearningRate"]
    if start < warmup:
        return peak * min(end / warmup, 1.0)
    if schedule["name"] == "constant":
        return peak
    done = min((start - warmup) / (training["epochs"] - warmup), 1.0)
    return least + (peak - least) * 0.5 * (1.0 + math.cos(math.pi * done))


def memory(device: torch.device) -> dict[str, int]:
    """Bytes of this process: the peak on its GPU, or else its current resident memory."""
    if device.type == "cuda":
        return {"deviceMemoryPeakBytes": torch.cuda.max_memory_allocated(device)}
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    kibibytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return {"residentBytes": kibibytes * 1024}


def train(config: dict, trainer: trainers.Trainer, log: Log) -> None:
    """The whole run."""
    training, place = config["training"], trainer.place
    epochs, accumulation = training["epochs"], training["gradientAccumulationSteps"]
    global_batch = training["microBatchSize"] * accumulation * place.replicas
    images = data.load(config, place.device)
    batches = data.Batches(images.train, training["microBatchSize"], training["seed"], place)
    steps = len(batches) // accumulation
    warmup = (config.get("measure") or {}).get("warmupSteps", 0)
    log.write(
        "start", totalSteps=steps * epochs, worldSize=place.world_size, trainImages=len(images.train),
        globalBatchSize=global_batch,
        device=torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else None)
    for epoch in range(epochs):
        micro_batches = batches.of_epoch(epoch)
        since, done, losses, correct, seen = time.perf_counter(), 0, 0.0, 0.0, 0
        for step in range(1, steps + 1):
            start, end = (epoch + taken * global_batch / len(images.train) for taken in (step - 1, step))
            trainer.set_learning_rate(learning_rate(config, start, end))
            for micro_batch in range(1, accumulation + 1):
                pixels, labels = next(micro_batches)
                loss, logits = trainer.micro_batch(pixels, labels, is_last=micro_batch == accumulation)
                losses, seen = losses + loss.detach() / accumulation, seen + len(labels)
                correct = correct + (logits.argmax(1) == labels).sum()
            done += 1
            # A line ends exactly at the warm-up, because lines that are partly warm-up are ignored.
            if step == steps or epoch * steps + step == warmup or time.perf_counter() - since >= INTERVAL:
                # Waits for the device: its remaining work belongs to these steps.
                mean, accuracy = float(losses) / done, float(correct) / seen
                now = time.perf_counter()
                log.write("train", epoch=epoch, step=epoch * steps + step, steps=done, loss=mean, accuracy=accuracy,
                          stepSeconds=(now - since) / done, **memory(place.device))
                since, done, losses = now, 0, 0.0
        if images.held_out is not None:
            accuracy = evaluate(trainer, images.held_out, training["microBatchSize"], log)
            log.write("evaluation", epoch=epoch + 1, accuracy=accuracy)


@torch.no_grad()
def evaluate(trainer: trainers.Trainer, images: data.Images, batch: int, log: Log) -> float:
    """The share of correctly classified images. All ranks run the same number of forward passes."""
    place = trainer.place
    trainer.model.eval()
    right = torch.zeros((), dtype=torch.int64, device=place.device)
    logged = -math.inf
    for start in range(0, len(images), batch * place.replicas):
        if time.monotonic() - logged > EVALUATING_INTERVAL:
            log.write("activity", activity="evaluating")
            logged = time.monotonic()
        rows = start + place.replica + place.replicas * torch.arange(batch, device=place.device)
        pixels, labels = images.take(rows.clamp(max=len(images) - 1))
        right += ((trainer.logits(pixels).argmax(1) == labels) & (rows < len(images))).sum()
    trainer.model.train()
    if place.world_size > 1:
        dist.all_reduce(right)
    # Ranks of one replica have counted the same images.
    return int(right) * place.replicas / place.world_size / len(images)


@record
def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in trainers.TRAINERS:
        print(f"usage: contender.py {'|'.join(trainers.TRAINERS)}", file=sys.stderr)
        return BAD_CONFIG
    config = json.loads(pathlib.Path(os.environ["VIT_RUN_CONFIG"]).read_text(encoding="utf-8"))
    name, seed = sys.argv[1], config["training"]["seed"]
    try:
        check(config, name)
    except Unsupported as why:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            # torchrun always exits with 1, and reports the exception.
            raise
        print(f"{name}: {why}", file=sys.stderr)
        return BAD_CONFIG
    place = trainers.Place.find(config)
    torch.manual_seed(seed)
    trainer = trainers.TRAINERS[name](config, place)
    # Replicas have the same weights, but different drop paths.
    torch.manual_seed(seed + 1 + place.replica)
    train(config, trainer, Log(place.rank == 0))
    if dist.is_initialized():
        dist.barrier()
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit may deadlock with Gloo's threads.
    os._exit(code)
