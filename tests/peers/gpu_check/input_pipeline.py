"""The input pipeline's images per second from real JPEG photographs, compared with what the step needs."""

import json
import os
import pathlib

from contenders import Case, bench

from .context import Context, Outcome
from .manifest import manifest

# Links to each file, to make an epoch long.
COPIES = 20
# The recipe of DeiT (docs/data.md) without its repeated augmentation, which would save decoding.
AUGMENTATION = {
    "randomResizedCrop": {"interpolation": "bicubic"}, "horizontalFlip": 0.5, "randAugment": "rand-m9-mstd0.5-inc1",
    "randomErasing": 0.25, "mixup": 0.8, "cutmix": 1.0,
}


def link_photographs(bundle: pathlib.Path, folder: pathlib.Path) -> None:
    for photograph in sorted((bundle / "data/photographs").glob("*/*.jpg")):
        target = folder / "train" / photograph.parent.name
        target.mkdir(parents=True, exist_ok=True)
        for copy in range(COPIES):
            os.symlink(photograph, target / f"{photograph.stem}-{copy}.jpg")


def check(context: Context) -> Outcome:
    folder, job = context.work / "photographs", context.work / "photographs.yaml"
    link_photographs(context.bundle, folder)
    case = Case("vit-b16-224", 256, "bf16-masters", device="cuda") if context.on_gpu else Case("vit-micro", 16, "fp32")
    data = {"format": "imageFolder", "volume": {"hostPath": {"path": "/unused"}}, "augmentation": AUGMENTATION}
    job.write_text(json.dumps(manifest("photographs", case, data)))
    settings = context.settings(12 if context.on_gpu else 4, 4 if context.on_gpu else 1, 60)
    measured = bench(case, settings, "-f", str(job), "--data", str(folder))
    found = measured["input"]
    message = (f"{found['images_per_second']:.0f} images/s on {found['threads']} threads; the step needs "
               f"{found['needed_images_per_second']:.0f}: the limit is the {found['limit']}")
    return Outcome("measured", message, found | {"trained_images_per_second": measured["images_per_second"]})
