"""Images on the device, as bytes, and the ranks' batches."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator

import torch
from torch.nn.functional import interpolate
from torch.utils.data import DistributedSampler

from trainers import Place

# Synthetic images beyond this size repeat.
MOST_SYNTHETIC_BYTES = 256 << 20
# Above the error of binary fractions, as in vit-trainer.
TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Cifar:
    """Files of a binary version of CIFAR: records of label bytes, the last of them the class, and three planes."""

    train: list[str]
    test: str
    label_bytes: int

    def read(self, folder: pathlib.Path, files: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels and labels."""
        records = [torch.frombuffer(bytearray((folder / file).read_bytes()), dtype=torch.uint8) for file in files]
        records = torch.cat(records).view(-1, self.label_bytes + 3 * 32 * 32)
        return records[:, self.label_bytes:].reshape(-1, 3, 32, 32), records[:, self.label_bytes - 1].long()


CIFAR = {
    "cifar10": Cifar([f"data_batch_{number}.bin" for number in range(1, 6)], "test_batch.bin", 1),
    "cifar100": Cifar(["train.bin"], "test.bin", 2),
}


@dataclasses.dataclass(frozen=True)
class Images:
    """Images and their labels. A longer data set repeats them."""

    pixels: torch.Tensor
    labels: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    length: int
    # Of the model's images, in pixels.
    side: int
    interpolation: str

    def __len__(self) -> int:
        return self.length

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalized images of the model's size and labels, by index."""
        rows = rows % len(self.labels)
        pixels = self.pixels[rows].float()
        if pixels.shape[-1] != self.side:
            # As vit-trainer does. Bicubic filters exceed the range of bytes.
            size = (self.side, self.side)
            pixels = interpolate(pixels, size, mode=self.interpolation, antialias=True).clamp(0.0, 255.0)
        return (pixels / 255.0 - self.mean) / self.std, self.labels[rows]

    def first_part(self, fraction: float) -> Images:
        """The first images, at least one: the same ones as vit-trainer's."""
        return dataclasses.replace(self, length=max(1, int(self.length * fraction + TOLERANCE)))


@dataclasses.dataclass(frozen=True)
class DataSet:
    train: Images
    held_out: Images | None


def load(config: dict, device: torch.device) -> DataSet:
    """The data set of a configuration."""
    settings, model = config["data"], config["model"]
    mean, std = (torch.tensor(settings["normalization"][name], device=device).view(-1, 1, 1) for name in ("mean", "std"))

    def images(pixels: torch.Tensor, labels: torch.Tensor, length: int | None = None) -> Images:
        return Images(pixels.to(device), labels.to(device), mean, std, length or len(labels), model["imageSize"],
                      settings["interpolation"])

    if settings["format"] == "synthetic":
        shape = (model["channels"], model["imageSize"], model["imageSize"])
        count = min(settings["syntheticImages"], MOST_SYNTHETIC_BYTES // math.prod(shape))
        pixels = torch.randint(256, (count, *shape), dtype=torch.uint8)
        labels = torch.randint(model["numClasses"], (count,))
        train, held_out = images(pixels, labels, settings["syntheticImages"]), None
    else:
        folder, files = pathlib.Path(settings["path"]), CIFAR[settings["format"]]
        train, held_out = images(*files.read(folder, files.train)), images(*files.read(folder, [files.test]))
    return DataSet(train.first_part(settings["fraction"]), held_out)


class Batches:
    """The micro-batches of a rank."""

    def __init__(self, images: Images, size: int, seed: int, place: Place):
        self.images, self.size, self.device = images, size, place.device
        self.sampler = DistributedSampler(range(len(images)), place.replicas, place.replica, seed=seed, drop_last=True)

    def __len__(self) -> int:
        return len(self.sampler) // self.size

    def of_epoch(self, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The full micro-batches of an epoch, in random order."""
        self.sampler.set_epoch(epoch)
        order = torch.tensor(list(self.sampler)).to(self.device)
        return map(self.images.take, order[:len(self) * self.size].split(self.size))
