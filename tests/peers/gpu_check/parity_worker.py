"""The computing part of the parity check. `truth` writes weights and timm's results in 64 bits; a precision prints how far
timm and the trainer are from these.

    python -m gpu_check.parity_worker truth|MODE FOLDER BUNDLE MODEL cuda|cpu
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import torch
from contenders import MODELS, PRECISIONS
from safetensors.torch import load_file, save_file
from timm_vit import VisionTransformer, make_model

# Of one step of plain SGD: it moves weights by this multiple of the gradients. A power of two loses no bits; a large one
# keeps the gradients' bits although weights are far larger.
LEARNING_RATE = 64.0

Tensors = dict[str, torch.Tensor]


def randomized(model: VisionTransformer) -> VisionTransformer:
    """Adds noise to every tensor, since initial values can hide a mistake (zero biases, unit norms)."""
    torch.manual_seed(20260)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape))
    return model


def results(model: VisionTransformer, images: torch.Tensor, labels: torch.Tensor) -> Tensors:
    """Logits and the gradients of the mean cross-entropy, as 64-bit tensors."""
    logits = model(images).to(torch.promote_types(images.dtype, torch.float32))
    torch.nn.functional.cross_entropy(logits, labels).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: tensor.detach().double().cpu() for name, tensor in {"logits": logits, **gradients}.items()}


def timm_results(folder: pathlib.Path, data: Tensors, name: str, device: str, mode: str) -> Tensors:
    """`mode` is a precision, or fp64."""
    weights = {"fp64": torch.float64, "bf16-masters": torch.bfloat16}.get(mode, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    model = make_model(MODELS[name])
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    images = data["images"].double().div(255).sub(0.5).div(0.5).to(weights)
    with torch.autocast(device, torch.bfloat16) if mode == "bf16" else contextlib.nullcontext():
        return results(model.to(device, weights), images.to(device), data["labels"].to(device))


def manifest(name: str, device: str, mode: str, images: int) -> dict:
    return {
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": {"name": "parity"},
        "spec": {
            "image": "unused",
            "model": MODELS[name],
            "data": {"format": "numpy", "volume": {"hostPath": {"path": "/unused"}}},
            "training": {
                "epochs": 1, "microBatchSize": images, "schedule": {"name": "constant"},
                "optimizer": {"name": "sgd", "learningRate": LEARNING_RATE, "momentum": 0.0, "weightDecay": 0.0},
            } | PRECISIONS[mode],
            "workers": {"nodes": 1, "device": device},
            "checkpoint": {"volume": {"hostPath": {"path": "/unused"}}},
        },
    }


def trainer_results(folder: pathlib.Path, bundle: pathlib.Path, data: Tensors, name: str, device: str, mode: str) -> Tensors:
    """Computes the gradients from the change of the weights in one step."""
    work = folder / mode
    work.mkdir()
    job, weights = work / "job.yaml", folder / "weights.safetensors"
    job.write_text(json.dumps(manifest(name, device, mode, len(data["labels"]))))
    trainer = bundle / "bin/vit-trainer"

    def run(*arguments: object) -> None:
        command = [str(trainer), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"RUST_LOG": "error"})

    on_data = ["-f", job, "--data"]
    run("eval", *on_data, bundle / "data/parity/eval", "--checkpoint", weights, "--logits", work / "logits.safetensors")
    run("run", *on_data, bundle / "data/parity/run", "--pretrained", weights, "--checkpoints", work)
    run("export", work / "parity", "--output", work / "stepped.safetensors")
    before, after = load_file(weights), load_file(work / "stepped.safetensors")
    gradients = {key: (before[key].double() - after[key].double()) / LEARNING_RATE for key in before}
    return {"logits": load_file(work / "logits.safetensors")["logits"].double(), **gradients}


def distance(of: Tensors, truth: Tensors) -> float:
    """Distance of all tensors together, relative to the truth."""
    squares = [((of[name] - truth[name]).square().sum(), truth[name].square().sum()) for name in truth]
    return (sum(square for square, _ in squares) / sum(square for _, square in squares)).sqrt().item()


def errors(of: Tensors, truth: Tensors) -> dict[str, float]:
    logits, gradients = {"logits": truth["logits"]}, {name: truth[name] for name in truth if name != "logits"}
    return {
        "logits": distance(of, logits),
        "gradients": distance(of, gradients),
        "worst_gradient": max(distance(of, {name: tensor}) for name, tensor in gradients.items()),
    }


def main() -> None:
    mode, name, device = sys.argv[1], sys.argv[4], sys.argv[5]
    folder, bundle = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    data = load_file(bundle / "data/parity/batch.safetensors")
    if mode == "truth":
        save_file(randomized(make_model(MODELS[name])).state_dict(), folder / "weights.safetensors")
        save_file(timm_results(folder, data, name, device, "fp64"), folder / "truth.safetensors")
        return
    truth = load_file(folder / "truth.safetensors")
    timm = errors(timm_results(folder, data, name, device, mode), truth)
    trainer = errors(trainer_results(folder, bundle, data, name, device, mode), truth)
    print(json.dumps({what: {"trainer": trainer[what], "timm": timm[what]} for what in timm}))


main()
