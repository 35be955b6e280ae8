"""Makes the bundle of `make gpu-check`: a folder to run on a machine with a GPU, Python and PyTorch 2.11. It needs no Rust,
network or repository.

    python -m gpu_check.bundle --output target/gpu-check --trainer ... --device-tests ... --plugin ... \\
        --digits ... --photographs WHEEL

    run.py       the command
    bin/         the trainer and the device tests, both stripped, and the NCCL plugin
    peers/       the scripts of tests/peers that run.py uses
    site/        the modules of timm that they import, and safetensors
    data/        digits; JPEG files of real photographs; a batch for the parity check
"""

import argparse
import io
import json
import pathlib
import random
import shutil
import subprocess
import sys
import zipfile

import numpy
import safetensors
import safetensors.numpy
import timm
import yaml
from PIL import Image

HERE = pathlib.Path(__file__).resolve().parent
PEERS = HERE.parent
ROOT = PEERS.parent.parent
MOST_BYTES = 60 << 20

SCRIPTS = ("contenders.py", "link.py", "peer.py", "timm_vit.py")
PHOTOGRAPHS = ("china", "flower")
# Width and height of crops, about the sizes of ImageNet's files.
CROP_SIZES = ((500, 375), (375, 500), (400, 300), (256, 256))
CROPS = 96
PARITY_IMAGES, PARITY_SIDE, PARITY_CLASSES = 4, 224, 10


def copy_programs(output: pathlib.Path, options: argparse.Namespace) -> None:
    (output / "bin").mkdir()
    for name, program in (("vit-trainer", options.trainer), ("device-tests", options.device_tests)):
        subprocess.run(["strip", "-o", output / "bin" / name, program], check=True)
    shutil.copy(options.plugin, output / "bin/libvit_nccl.so")


def copy_scripts(output: pathlib.Path) -> None:
    shutil.copy(HERE / "run.py", output / "run.py")
    (output / "peers/gpu_check").mkdir(parents=True)
    for name in SCRIPTS:
        shutil.copy(PEERS / name, output / "peers" / name)
    for script in HERE.glob("*.py"):
        if script.name not in ("run.py", pathlib.Path(__file__).name):
            shutil.copy(script, output / "peers/gpu_check" / script.name)


def copy_modules(output: pathlib.Path) -> None:
    """Copies the modules of timm that timm_vit imports, which need only PyTorch, and all of safetensors, which runs with any
    Python 3."""
    program = ("import sys, timm_vit\n"
               "modules = (module for name, module in sys.modules.items() if name.startswith('timm.'))\n"
               "print(*(module.__file__ for module in modules if hasattr(module, '__file__')))")
    imported = subprocess.run([sys.executable, "-c", program], cwd=PEERS, env={"PYTHONPATH": str(PEERS)}, check=True,
                              stdout=subprocess.PIPE, text=True).stdout.split()
    root = pathlib.Path(timm.__file__).parent
    for file in (root / "__init__.py", *map(pathlib.Path, imported)):
        target = output / "site/timm" / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    shutil.copytree(pathlib.Path(safetensors.__file__).parent, output / "site/safetensors",
                    ignore=shutil.ignore_patterns("__pycache__"))


def write_photographs(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes re-encoded crops of the two photographs in scikit-learn's wheel."""
    draw = random.Random(20260)
    with zipfile.ZipFile(wheel) as opened:
        for name in PHOTOGRAPHS:
            target = folder / name
            target.mkdir(parents=True)
            photograph = Image.open(io.BytesIO(opened.read(f"sklearn/datasets/images/{name}.jpg")))
            for number in range(CROPS):
                size = CROP_SIZES[number % len(CROP_SIZES)]
                scale = draw.uniform(0.6, 1.0) * min(photograph.width / size[0], photograph.height / size[1])
                width, height = size[0] * scale, size[1] * scale
                left, top = draw.uniform(0, photograph.width - width), draw.uniform(0, photograph.height - height)
                crop = photograph.resize(size, Image.Resampling.BICUBIC, (left, top, left + width, top + height))
                crop.save(target / f"{number:03}.jpg", quality=90)


def write_batch(folder: pathlib.Path) -> None:
    """Writes random images in the trainer's formats for training and evaluation, and for the Python model."""
    drawn = numpy.random.default_rng(20260)
    shape = (PARITY_IMAGES, 3, PARITY_SIDE, PARITY_SIDE)
    batch = {"images": drawn.integers(256, size=shape, dtype=numpy.uint8),
             "labels": drawn.integers(PARITY_CLASSES, size=PARITY_IMAGES)}
    for name in ("run/train.npz", "eval/train.npz", "eval/val.npz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        numpy.savez_compressed(folder / name, **batch)
    safetensors.numpy.save_file(batch, folder / "batch.safetensors")


def copy_data(output: pathlib.Path, options: argparse.Namespace) -> None:
    shutil.copytree(options.digits, output / "data/digits")
    # JSON is valid YAML, and Python reads it without a library.
    job = yaml.safe_load((ROOT / "examples/digits.yaml").read_text())
    (output / "data/digits.json").write_text(json.dumps(job))
    write_photographs(options.photographs, output / "data/photographs")
    write_batch(output / "data/parity")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder, replaced if it exists")
    parser.add_argument("--trainer", type=pathlib.Path, required=True)
    parser.add_argument("--device-tests", type=pathlib.Path, required=True, help="built trainer/torch-ext/tests/device.rs")
    parser.add_argument("--plugin", type=pathlib.Path, required=True)
    parser.add_argument("--digits", type=pathlib.Path, required=True, help="folder written by `vit-cluster digits`")
    parser.add_argument("--photographs", type=pathlib.Path, required=True, help="scikit-learn's wheel")
    options = parser.parse_args()
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    copy_programs(options.output, options)
    copy_scripts(options.output)
    copy_modules(options.output)
    copy_data(options.output, options)
    size = sum(file.stat().st_size for file in options.output.rglob("*") if file.is_file())
    if size > MOST_BYTES:
        sys.exit(f"{options.output} has {size / 2**20:.1f} MiB; the limit is {MOST_BYTES >> 20} MiB")
    print(f"{options.output}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
