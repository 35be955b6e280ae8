"""Images on the device, as bytes, and the ranks' batches."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator

import torch
from torch.utils.data import DistributedSampler

from trainers import Place

# Synthetic images beyond this size repeat.
MOST_SYNTHETIC_BYTES = 256 << 20
# A record of CIFAR-10's binary version: a label, and three planes of 32 x 32 bytes.
CIFAR_RECORD = 1 + 3 * 32 * 32


@dataclasses.dataclass(frozen=True)
class Images:
    """Images and their labels. A longer data set repeats them."""

    pixels: torch.Tensor
    labels: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    length: int

    def __len__(self) -> int:
        return self.length

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalized images and labels, by index."""
        rows = rows % len(self.labels)
        return (self.pixels[rows].float() / 255.0 - self.mean) / self.std, self.labels[rows]


@dataclasses.dataclass(frozen=True)
class DataSet:
    train: Images
    held_out: Images | None


def load(config: dict, device: torch.device) -> DataSet:
    """The data set of a configuration."""
    settings, model = config["data"], config["model"]
    mean, std = (torch.tensor(settings["normalization"][name], device=device).view(-1, 1, 1) for name in ("mean", "std"))

    def images(pixels: torch.Tensor, labels: torch.Tensor, length: int | None = None) -> Images:
        return Images(pixels.to(device), labels.to(device), mean, std, length or len(labels))

    if settings["format"] == "synthetic":
        shape = (model["channels"], model["imageSize"], model["imageSize"])
        count = min(settings["syntheticImages"], MOST_SYNTHETIC_BYTES // math.prod(shape))
        pixels = torch.randint(256, (count, *shape), dtype=torch.uint8)
        labels = torch.randint(model["numClasses"], (count,))
        return DataSet(images(pixels, labels, settings["syntheticImages"]), None)
    folder = pathlib.Path(settings["path"])
    return DataSet(
        images(*cifar(sorted(folder.glob("data_batch_*.bin")))), images(*cifar([folder / "test_batch.bin"])))


def cifar(files: list[pathlib.Path]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and labels of files of CIFAR-10's binary version."""
    records = torch.cat([torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files])
    records = records.view(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


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
