"""Trains sharded models with PyTorch: FSDP2 in fp32 and bf16, and tensor parallelism by DTensor. The trainer's test
trainer/tests/integration/torch.rs trains with the same ranks, weights and images.

    PYTHONPATH=contenders python tests/peers/divided_training.py

Writes tests/peers/goldens/divided: images and labels in format `numpy`, and the weights after STEPS steps, each of all
images. Starts from the weights of `class_token`. Created with torch 2.11.0 and timm 1.0.31 on the CPU.
"""

import json
import pathlib
import sys

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_weight_decay
from torch.distributed.device_mesh import init_device_mesh

import divided

GOLDENS = pathlib.Path(__file__).parent / "goldens"
FOLDER = GOLDENS / "divided"
STEPS, IMAGES, LEARNING_RATE, WEIGHT_DECAY, CLIP = 10, 12, 0.01, 0.05, 0.5


def start() -> VisionTransformer:
    sizes = json.loads((GOLDENS / "class_token/model.json").read_text())
    model = VisionTransformer(
        img_size=sizes["imageSize"], patch_size=sizes["patchSize"], embed_dim=sizes["hiddenSize"], depth=sizes["depth"],
        num_heads=sizes["heads"], mlp_ratio=sizes["mlpSize"] / sizes["hiddenSize"], num_classes=sizes["numClasses"],
    )
    model.load_state_dict(load_file(GOLDENS / "class_token/model.safetensors"))
    return model.train()


def train(rank: int, ranks: int, name: str, store: str, images: torch.Tensor, labels: torch.Tensor) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh, model = init_device_mesh("cpu", (ranks,)), start()
    is_sharded = name.startswith("fsdp2")
    if is_sharded:
        precision = torch.bfloat16 if name == "fsdp2_bf16" else torch.float32
        divided.shard(model, mesh, reshard_after_forward=True, precision=precision)
        images, labels = images.chunk(ranks)[rank], labels.chunk(ranks)[rank]
    else:
        divided.divide_heads(model, mesh)
    groups = param_groups_weight_decay(model, WEIGHT_DECAY, no_weight_decay_list=model.no_weight_decay())
    # A large epsilon, so that rounding of gradients near zero does not decide the sign of updates.
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=1e-4, foreach=False)
    for _ in range(STEPS):
        torch.nn.functional.cross_entropy(model(images).float(), labels).backward()
        if is_sharded:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    state = divided.whole_state(model)
    if name == "tensor":
        state = divided.in_order_of_parts(state, ranks)
    if rank == 0:
        save_file({key: value.contiguous() for key, value in state.items()}, FOLDER / f"{name}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(20261)
    images, labels = torch.randn(IMAGES, 3, 16, 16), torch.randint(5, (IMAGES,))
    numpy.save(FOLDER / "train_images.npy", images.numpy())
    numpy.save(FOLDER / "train_labels.npy", labels.numpy())
    for name, ranks in (("fsdp2", 2), ("fsdp2_bf16", 2), ("tensor", 3)):
        store = FOLDER / "store"
        store.unlink(missing_ok=True)
        multiprocessing.spawn(train, (ranks, name, str(store.resolve()), images, labels), nprocs=ranks)
        store.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
