#!/usr/bin/env python3
"""Checks this bundle's trainer on this machine with the PyTorch 2.11 of its Python: `python3 run.py --help`."""

import importlib.util
import os
import pathlib
import sys

BUNDLE = pathlib.Path(__file__).resolve().parent


def prepare() -> None:
    """Lets every process find PyTorch's libraries and the bundle's modules."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit(f"{sys.executable} has no PyTorch: run this with a Python that has torch 2.11.0")
    package = pathlib.Path(torch.origin).parent
    libraries = [BUNDLE / "bin", package / "lib", *sorted((package.parent / "nvidia").glob("*/lib"))]
    modules = [BUNDLE / "peers", BUNDLE / "site"]
    for variable, folders in (("LD_LIBRARY_PATH", libraries), ("PYTHONPATH", modules)):
        others = filter(None, [os.environ.get(variable)])
        os.environ[variable] = os.pathsep.join([*map(str, folders), *others])
    sys.path[:0] = map(str, modules)


if __name__ == "__main__":
    prepare()
    from gpu_check.main import main

    main(BUNDLE)
