"""Checks that timm and torchvision strictly load the files of `vit-trainer export`, and compute the same with them.

    make check-export

For each model: trains it for a few steps on random images, evaluates the checkpoint (`vit-trainer eval --logits`), exports
it, creates the model in Python as the file's metadata says, and compares logits and mean loss on the held-out images. The
exit code is 1 if a file does not load or a logit exceeds the tolerance.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import safetensors
import safetensors.torch
import timm
import torch
import torchvision

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOLERANCE = 1e-4
TRAINED, HELD_OUT, CLASSES = 8, 12, 10
SMALL = {"imageSize": 16, "patchSize": 4, "hiddenSize": 24, "depth": 2, "heads": 3, "mlpSize": 50}

# Name in messages, spec.model, further fields of spec.training, options of export, and the model's name in Python.
CASES = [
    ("a class token", SMALL, {}, [], "VisionTransformer"),
    ("a class token", SMALL, {}, ["--names", "torchvision"], "VisionTransformer"),
    ("the average of weights", SMALL, {"ema": {"decay": 0.5}}, ["--ema"], "VisionTransformer"),
    ("masters of bf16 weights", SMALL, {"precision": "bf16", "masterWeights": True}, [], "VisionTransformer"),
    ("average pooling", SMALL | {"pooling": "average"}, {}, [], "VisionTransformer"),
    ("registers, layer scale", SMALL | {"registerTokens": 2, "layerScale": 0.5}, {}, [], "VisionTransformer"),
    ("registers, average pooling", SMALL | {"registerTokens": 4, "pooling": "average"}, {}, [], "VisionTransformer"),
    ("five channels", SMALL | {"channels": 5}, {}, [], "VisionTransformer"),
    ("timm's ViT-Ti/16", {"name": "vit_tiny_patch16_224"}, {}, [], "vit_tiny_patch16_224"),
    ("timm's ViT-Ti/16 at 64 pixels", {"name": "vit_tiny_patch16_224", "imageSize": 64}, {}, [], "vit_tiny_patch16_224"),
    ("timm's DINOv2 with registers at 56 pixels", {"name": "vit_small_patch14_reg4_dinov2", "imageSize": 56}, {}, [],
     "vit_small_patch14_reg4_dinov2"),
    ("timm's DINOv3 with a gated MLP", {"name": "vit_small_plus_patch16_dinov3_qkvb", "imageSize": 64, "depth": 2}, {}, [],
     "vit_huge_plus_patch16_dinov3_qkvb"),
    ("timm's SigLIP", {"name": "vit_base_patch16_siglip_224", "imageSize": 64, "depth": 2}, {}, [],
     "VisionTransformer"),
    ("timm's distilled DeiT", {"name": "deit_tiny_distilled_patch16_224", "imageSize": 64}, {}, [],
     "deit_tiny_distilled_patch16_224"),
    ("torchvision's ViT-B/32", {"name": "vit_b_32"}, {}, ["--names", "torchvision"], "vit_b_32"),
]


def run(options, *arguments):
    """The trainer's standard output."""
    command = [options.trainer, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=os.environ | {"RUST_LOG": "warn"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def write_job(folder, model, training):
    """Writes the manifest, and random images to the data folder."""
    side = model.get("imageSize", 224)
    channels = model.get("channels", 3)
    data = folder / "data"
    data.mkdir()
    random = numpy.random.default_rng(7)
    for split, count in (("train", TRAINED), ("val", HELD_OUT)):
        numpy.savez(
            data / f"{split}.npz",
            images=random.integers(256, size=(count, channels, side, side), dtype=numpy.uint8),
            labels=random.integers(CLASSES, size=count),
        )
    job = {
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": {"name": "check"},
        "spec": {
            "image": "unused",
            "model": model | {"numClasses": CLASSES},
            "data": {"format": "numpy", "volume": {"hostPath": {"path": "/unused"}}},
            "training": {"epochs": 1, "microBatchSize": 4, "optimizer": {"name": "sgd", "learningRate": 0.01}} | training,
            "workers": {"nodes": 1, "device": "cpu"},
            "checkpoint": {"volume": {"hostPath": {"path": "/unused"}}},
        },
    }
    (folder / "job.yaml").write_text(json.dumps(job))


def python_model(file, with_timm):
    """Creates the model from the file's metadata, and strictly loads its weights."""
    with safetensors.safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    name, arguments = metadata["model"], json.loads(metadata["arguments"])
    if with_timm and name != "VisionTransformer":
        model = timm.create_model(name, **arguments, checkpoint_path=str(file))
    else:
        model = getattr(timm.models if with_timm else torchvision.models, name)(**arguments)
        model.load_state_dict(safetensors.torch.load_file(file), strict=True)
    return name, model.eval()


def check(folder, options, case):
    about, sizes, training, arguments, expected_name = case
    write_job(folder, sizes, training)
    on_job = ["-f", folder / "job.yaml", "--data", folder / "data", "--checkpoints", folder / "runs"]
    run(options, "run", *on_job)
    weights = folder / "weights.safetensors"
    run(options, "export", folder / "runs/check", "--output", weights, *arguments)
    # In fp32, like the libraries.
    job = json.loads((folder / "job.yaml").read_text())
    job["spec"]["training"] |= {"precision": "fp32", "masterWeights": False}
    (folder / "job.yaml").write_text(json.dumps(job))
    scores = json.loads(run(options, "eval", *on_job, "--json", "--logits", folder / "logits.safetensors",
                            *(argument for argument in arguments if argument == "--ema")))
    ours = safetensors.torch.load_file(folder / "logits.safetensors")

    with_timm = "torchvision" not in arguments
    name, model = python_model(weights, with_timm)
    held_out = numpy.load(folder / "data/val.npz")
    images = torch.from_numpy(held_out["images"]).float().div(255).sub(0.5).div(0.5)
    labels = torch.from_numpy(held_out["labels"])
    with torch.no_grad():
        logits = model(images)
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    distance = (logits - ours["logits"]).abs().max().item()
    correct = (logits.argmax(1) == labels).sum().item()
    good = (distance < TOLERANCE and abs(loss - scores["loss"]) < TOLERANCE and correct == scores["correct"]
            and torch.equal(labels, ours["labels"]) and name == expected_name)
    library = "timm" if with_timm else "torchvision"
    print(f"{'ok' if good else 'FAILED':<7}{about}: {library} {name}, logits differ by {distance:.1e}, "
          f"loss {loss:.6f} and {scores['loss']:.6f}, {correct} and {scores['correct']} of {HELD_OUT} correct", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "target/release/vit-trainer"))
    options = parser.parse_args()
    if shutil.which(options.trainer) is None:
        sys.exit(f"{options.trainer} does not exist: run `make release`")
    good = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            good.append(check(pathlib.Path(folder), options, case))
    sys.exit(0 if all(good) else 1)


main()
