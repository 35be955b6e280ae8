"""Extracts native libraries and headers from PyTorch's and NVIDIA's wheels, without installing them.

PyTorch publishes its C++ library in the Python wheel; nothing here runs a wheel's Python code. The commands
`fetch-libtorch`, `fetch-nccl` and `fetch-cuda` in this folder fill the folders defined here.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

TORCH_VERSION = "2.11.0"
NCCL_VERSION = "2.28.9"
TORCH = f"torch=={TORCH_VERSION}"
# A wheel's platform is its oldest C library, and pip matches names exactly.
PLATFORMS = ["manylinux1_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 29))]


def cache_dir() -> pathlib.Path:
    """The project's cache: $VIT_CACHE, or vit-operator in the user's cache folder."""
    if os.environ.get("VIT_CACHE"):
        return pathlib.Path(os.environ["VIT_CACHE"])
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home) / "vit-operator"


def say(line: str) -> None:
    """Progress goes to stderr: stdout carries only the resulting path."""
    print(line, file=sys.stderr, flush=True)


class Wheels:
    """Downloads each wheel at most once and deletes all of them at the end."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.fetched: dict[str, pathlib.Path] = {}

    def get(self, requirement: str) -> pathlib.Path:
        """The wheel of `requirement` (name==version), downloaded by pip."""
        if requirement not in self.fetched:
            say(f"downloading {requirement}")
            into = self.folder / requirement
            platforms = [word for name in PLATFORMS for word in ("--platform", name)]
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--python-version",
                       "3.11", "--implementation", "cp", *platforms, "--disable-pip-version-check", "--no-cache-dir",
                       "--dest", str(into), requirement]
            if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
                sys.exit(f"pip could not download {requirement} for x86-64 Linux: see its message above")
            self.fetched[requirement] = next(into.glob("*.whl"))
        return self.fetched[requirement]

    def unpack(self, requirement: str, select, target: pathlib.Path) -> None:
        """Writes each file to the path that `select(name)` returns, if any, under `target`."""
        count = 0
        with zipfile.ZipFile(self.get(requirement)) as wheel:
            for member in wheel.infolist():
                name = select(member.filename)
                if name is None or member.is_dir():
                    continue
                out = target / name
                out.parent.mkdir(parents=True, exist_ok=True)
                with wheel.open(member) as source, open(out, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                count += 1
        if count == 0:
            sys.exit(f"{requirement} has none of the required files: has its layout changed?")
        say(f"  {count} files from {requirement}")


@contextlib.contextmanager
def opened_wheels():
    """Wheels in a temporary folder next to the results, because half a gigabyte may not fit in /tmp."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".wheels-") as folder:
        yield Wheels(pathlib.Path(folder))


def build_folder(name: str, wheels: Wheels, fill) -> pathlib.Path:
    """The cache's folder `name`, filled by `fill(wheels, folder)` and renamed when complete."""
    final = cache_dir() / name
    if final.is_dir():
        return final
    partial = pathlib.Path(tempfile.mkdtemp(dir=cache_dir(), prefix=f".{name}-"))
    try:
        fill(wheels, partial)
        partial.chmod(0o755)
        partial.rename(final)
    except OSError:
        # Another process finished the same folder first; anything else is a real error.
        if not final.is_dir():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def under(prefix: str, target: str = "", names=None):
    """Selects the files below `prefix`, to move below `target`; only `names` if given."""

    def select(path: str):
        if not path.startswith(prefix):
            return None
        rest = path[len(prefix):]
        if names is not None and rest not in names:
            return None
        return os.path.join(target, rest)

    return select


def fill_libtorch(wheels: Wheels, folder: pathlib.Path) -> None:
    """A libtorch folder for the CPU: headers, and the libraries that libtorch_cpu.so needs."""
    wheels.unpack(TORCH, under("torch/include/", "include"), folder)
    wheels.unpack(TORCH, under("torch/lib/", "lib", {"libc10.so", "libtorch_cpu.so", "libgomp.so.1"}), folder)
    wheels.unpack("nvidia-cuda-runtime==13.0.96", under("nvidia/cu13/lib/", "lib", {"libcudart.so.13"}), folder)
    wheels.unpack("nvidia-cuda-cupti==13.0.85", under("nvidia/cu13/lib/", "lib", {"libcupti.so.13"}), folder)
    # The tch crate links `torch`; the real libtorch.so would pull in the CUDA half.
    (folder / "lib/libtorch.so").write_text("INPUT(libtorch_cpu.so)\n")
    (folder / "build-version").write_text(f"{TORCH_VERSION}+cpu\n")


def fill_nccl(wheels: Wheels, folder: pathlib.Path) -> None:
    """Files for compiling and linking against c10d::ProcessGroupNCCL, in addition to the libtorch folder."""
    wheels.unpack(TORCH, under("torch/lib/", "lib", {"libtorch_cuda.so", "libc10_cuda.so"}), folder)
    wheels.unpack(f"nvidia-nccl-cu13=={NCCL_VERSION}", under("nvidia/nccl/include/", "include"), folder)
    for requirement in ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-cccl==13.0.85",
                        "nvidia-cublas==13.1.0.3", "nvidia-cusparse==12.6.3.3", "nvidia-cusolver==12.0.4.66"]:
        wheels.unpack(requirement, under("nvidia/cu13/include/", "include"), folder)
        # Frees space: cuBLAS alone has half a gigabyte of libraries.
        wheels.fetched.pop(requirement).unlink()


# Libraries by wheel that libtorch_cuda.so needs or loads at run time (cuDNN's engines, NVRTC for
# generated kernels), in the versions that the torch wheel requires. Without cuSOLVER, which only
# linear algebra solvers need.
CUDA_LIBRARIES = {
    "nvidia-cublas==13.1.0.3": ("nvidia/cu13/lib/", {"libcublas.so.13", "libcublasLt.so.13"}),
    "nvidia-cuda-nvrtc==13.0.88": ("nvidia/cu13/lib/", {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0"}),
    "nvidia-cudnn-cu13==9.19.0.56": ("nvidia/cudnn/lib/", None),
    "nvidia-cufft==12.0.0.61": ("nvidia/cu13/lib/", {"libcufft.so.12"}),
    "nvidia-cufile==1.15.1.6": ("nvidia/cu13/lib/", {"libcufile.so.0"}),
    "nvidia-curand==10.4.0.35": ("nvidia/cu13/lib/", {"libcurand.so.10"}),
    "nvidia-cusparse==12.6.3.3": ("nvidia/cu13/lib/", {"libcusparse.so.12"}),
    "nvidia-cusparselt-cu13==0.8.0": ("nvidia/cusparselt/lib/", {"libcusparseLt.so.0"}),
    f"nvidia-nccl-cu13=={NCCL_VERSION}": ("nvidia/nccl/lib/", {"libnccl.so.2"}),
    "nvidia-nvjitlink==13.0.88": ("nvidia/cu13/lib/", {"libnvJitLink.so.13"}),
    "nvidia-nvshmem-cu13==3.4.5": ("nvidia/nvshmem/lib/", {"libnvshmem_host.so.3"}),
}


def fill_cuda(wheels: Wheels, folder: pathlib.Path) -> None:
    """The additional libraries for training on NVIDIA GPUs, in one folder, because each searches its own folder for
    the others."""
    torch = {"libtorch_cuda.so", "libc10_cuda.so", "libtorch_nvshmem.so", "libcaffe2_nvrtc.so"}
    wheels.unpack(TORCH, under("torch/lib/", "lib", torch), folder)
    for requirement, (prefix, names) in CUDA_LIBRARIES.items():
        wheels.unpack(requirement, under(prefix, "lib", names), folder)
        # Frees space: together they are gigabytes.
        wheels.fetched.pop(requirement).unlink()


LIBTORCH_FOLDER = f"libtorch-{TORCH_VERSION}-cpu"
NCCL_FOLDER = f"nccl-{NCCL_VERSION}-torch-{TORCH_VERSION}"
CUDA_FOLDER = f"cuda-13-torch-{TORCH_VERSION}"
