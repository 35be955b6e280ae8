"""timm's Vision Transformer, without the rest of timm.

`import timm` needs seconds, and torchvision, Pillow and NumPy for data sets and many other models. The modules imported here
need only PyTorch, and are few files.
"""

import contextlib
import importlib
import importlib.util
import pathlib
import sys
import types
from collections.abc import Iterator

import torch


class _FrozenBatchNorm2d(torch.nn.Module):
    """For timm's isinstance checks. A Vision Transformer has no such layer."""


def _package(name: str, path: list[str], **contents: object) -> types.ModuleType:
    """A package whose modules can be imported without its __init__.py."""
    package = types.ModuleType(name)
    package.__path__ = path
    vars(package).update(contents)
    sys.modules[name] = package
    return package


def _prepare() -> None:
    """Creates packages with the names that the Vision Transformer's modules import from them."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        raise ImportError("timm is not installed: `make peers` creates a Python environment with it")
    root = pathlib.Path(spec.origin).parent
    timm = _package("timm", [str(root)])
    timm.__version__ = importlib.import_module("timm.version").__version__
    data, models = (_package(f"timm.{name}", [str(root / name)]) for name in ("data", "models"))
    constants = importlib.import_module("timm.data.constants")
    vars(data).update((name, value) for name, value in vars(constants).items() if name.isupper())
    with _torchvision():
        models.group_parameters = importlib.import_module("timm.models._manipulate").group_parameters
    _package("timm.optim", [str(root / "optim")])


@contextlib.contextmanager
def _torchvision() -> Iterator[None]:
    """A torchvision stub with what timm's layers import. It is removed at the end, so that others find the real one."""
    names = ("torchvision", "torchvision.ops", "torchvision.ops.misc")
    made = [name for name in names if name not in sys.modules]
    for name in made:
        _package(name, [], FrozenBatchNorm2d=_FrozenBatchNorm2d)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


_prepare()
with _torchvision():
    VisionTransformer = importlib.import_module("timm.models.vision_transformer").VisionTransformer
    param_groups_weight_decay = importlib.import_module("timm.optim._param_groups").param_groups_weight_decay


def make_model(sizes: dict) -> VisionTransformer:
    """timm's model, with sizes named as in the trainer's manifest."""
    pooled = sizes.get("pooling", "token") == "average"
    return VisionTransformer(
        img_size=sizes["imageSize"], patch_size=sizes["patchSize"], embed_dim=sizes["hiddenSize"],
        depth=sizes["depth"], num_heads=sizes["heads"], num_classes=sizes["numClasses"],
        class_token=not pooled, global_pool="avg" if pooled else "token")
