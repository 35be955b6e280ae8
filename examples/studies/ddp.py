"""A contender of a scaling study: timm's Vision Transformer under PyTorch's DistributedDataParallel.

It runs under torchrun, and `vit-trainer study` starts it once for each rank with torchrun's environment. $VIT_RUN_CONFIG has
what to train, and rank 0 writes what it measures to $VIT_LOG. Synthetic images only.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from timm.models.vision_transformer import VisionTransformer

CONFIG = json.load(open(os.environ["VIT_RUN_CONFIG"], encoding="utf-8"))
RANK, WORLD, LOCAL_RANK = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
ON_GPU = CONFIG["device"] != "cpu" and torch.cuda.is_available()
DEVICE = torch.device("cuda", LOCAL_RANK) if ON_GPU else torch.device("cpu")
# A line of the log covers at least so many seconds.
INTERVAL = 0.5


def make_model() -> torch.nn.Module:
    sizes = CONFIG["model"]
    model = VisionTransformer(
        img_size=sizes["imageSize"], patch_size=sizes["patchSize"], in_chans=sizes["channels"],
        num_classes=sizes["numClasses"], embed_dim=sizes["hiddenSize"], depth=sizes["depth"], num_heads=sizes["heads"],
        mlp_ratio=sizes["mlpSize"] / sizes["hiddenSize"], class_token=sizes["pooling"] == "token",
        global_pool="token" if sizes["pooling"] == "token" else "avg")
    model.to(DEVICE)
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[LOCAL_RANK] if ON_GPU else None,
                                                     gradient_as_bucket_view=True) if WORLD > 1 else model


def main() -> None:
    training, sizes = CONFIG["training"], CONFIG["model"]
    torch.manual_seed(training["seed"] + RANK)
    if WORLD > 1:
        dist.init_process_group("nccl" if ON_GPU else "gloo")
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=training["optimizer"]["learningRate"],
                                  weight_decay=training["optimizer"]["weightDecay"], fused=True)
    batch, epochs, count = training["microBatchSize"], training["epochs"], CONFIG["data"]["syntheticImages"]
    steps = count // (batch * WORLD)
    images = torch.randint(256, (8 * batch, sizes["channels"], sizes["imageSize"], sizes["imageSize"]), dtype=torch.uint8,
                           device=DEVICE)
    labels = torch.randint(sizes["numClasses"], (8 * batch,), device=DEVICE)
    log = open(os.environ["VIT_LOG"], "a", encoding="utf-8") if RANK == 0 else None

    def write(kind: str, **fields) -> None:
        if log:
            print(json.dumps({"kind": kind, **fields}), file=log, flush=True)

    write("start", totalSteps=steps * epochs, worldSize=WORLD, globalBatchSize=batch * WORLD, trainImages=count,
          device=torch.cuda.get_device_name(DEVICE) if ON_GPU else None)
    for epoch in range(epochs):
        since, done, losses, correct = time.perf_counter(), 0, 0.0, 0
        seen = 0
        for step in range(1, steps + 1):
            rows = slice(step % 8 * batch, (step % 8 + 1) * batch)
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=training["precision"] == "bf16"):
                logits = model(images[rows].float().div_(127.5).sub_(1.0)).float()
            loss = torch.nn.functional.cross_entropy(logits, labels[rows])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            done, losses = done + 1, losses + loss.detach()
            correct, seen = correct + (logits.argmax(1) == labels[rows]).sum(), seen + batch
            if step == steps or time.perf_counter() - since >= INTERVAL:
                # Waits for the device: what it still has to do belongs to these steps.
                mean, accuracy = float(losses) / done, float(correct) / seen
                now = time.perf_counter()
                write("train", epoch=epoch, step=epoch * steps + step, steps=done, loss=mean, accuracy=accuracy,
                      stepSeconds=(now - since) / done)
                since, done, losses = now, 0, 0.0
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
