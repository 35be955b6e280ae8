"""Measures the trainer and its peers on a case, each in separate processes."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import link

HERE = pathlib.Path(__file__).resolve().parent
# The folder of a module that peer.py imports for sharded models.
MODULES = HERE.parent.parent / "contenders"

# Sizes, named as in the trainer's manifest.
MODELS: dict[str, dict] = {
    "vit-micro": {"imageSize": 32, "patchSize": 8, "hiddenSize": 96, "depth": 3, "heads": 3, "numClasses": 10},
    "vit-cifar-p4": {"imageSize": 32, "patchSize": 4, "hiddenSize": 192, "depth": 12, "heads": 3, "numClasses": 10},
    "vit-ti16-224": {"imageSize": 224, "patchSize": 16, "hiddenSize": 192, "depth": 12, "heads": 3, "numClasses": 1000},
    "vit-s16-224": {"imageSize": 224, "patchSize": 16, "hiddenSize": 384, "depth": 12, "heads": 6, "numClasses": 1000},
    "vit-b16-224": {"imageSize": 224, "patchSize": 16, "hiddenSize": 768, "depth": 12, "heads": 12, "numClasses": 1000},
    "vit-l16-224": {"imageSize": 224, "patchSize": 16, "hiddenSize": 1024, "depth": 24, "heads": 16,
                    "numClasses": 1000},
    "vit-h16-224": {"imageSize": 224, "patchSize": 16, "hiddenSize": 1280, "depth": 32, "heads": 16,
                    "numClasses": 1000},
}
# Manifest fields of each mode; peer.py has the same modes.
PRECISIONS: dict[str, dict] = {
    "fp32": {},
    "tf32": {"tf32": True},
    "bf16": {"precision": "bf16"},
    "bf16-masters": {"precision": "bf16", "masterWeights": True},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A case to measure."""

    model: str
    # Images per rank and step.
    batch: int
    precision: str
    ranks: int = 1
    device: str = "cpu"
    pooling: str = "token"
    # `spec.parallelism` of the trainer's manifest.
    parallelism: dict[str, int | bool] = dataclasses.field(default_factory=dict)
    # Arguments of link.link; None for ranks without a network between them.
    link: dict[str, float] | None = None

    @property
    def sizes(self) -> dict:
        return MODELS[self.model] | {"pooling": self.pooling}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a measurement."""

    trainer: str
    steps: int
    warmup: int
    # Pairs of steps with and without reduction, with several ranks.
    pairs: int = 0
    # FIELD=VALUE for the trainer's manifest.
    set: Sequence[str] = ()
    # Time limit of a contender in seconds; a peer may have to compile its model.
    timeout: float = 900.0


class CannotRun(Exception):
    """Why a contender cannot run a case."""


# Measures a contender once, with its ranks in these network namespaces, if any.
Contender = Callable[[Case, Settings, Sequence[str]], dict]


def stop(process: subprocess.Popen) -> None:
    """Ends a process group, first with SIGTERM: only torchrun can end its workers, which have their own groups."""
    for sent, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, sent)
            process.wait(patience)


def run(command: Sequence[str], env: dict[str, str], timeout: float) -> str:
    """Runs a contender in its own process group and returns its output. An error has the end of the output."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        code: int | str | None = None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = f"no end within {timeout:.0f} s"
        finally:
            if code != 0:
                stop(process)
        output.seek(0)
        text = output.read()
    if code != 0:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "error" in line] or lines
        raise CannotRun(f"{pathlib.Path(command[0]).name} ended with {code}: {' | '.join(errors[-4:])[:1200]}")
    return text


def threads_of(case: Case) -> int:
    return max(1, (os.cpu_count() or 1) // case.ranks)


def environment(case: Case) -> dict[str, str]:
    """The environment of all contenders."""
    return os.environ | {"OMP_NUM_THREADS": str(threads_of(case)), "TORCH_CPP_LOG_LEVEL": "ERROR"}


def fields(case: Case) -> list[str]:
    """FIELD=VALUE settings of the trainer's manifest for a case."""
    values = {"workers.device": case.device, "model.name": None}
    values |= {f"model.{name}": value for name, value in case.sizes.items()}
    values |= {f"training.{name}": value for name, value in PRECISIONS[case.precision].items()}
    values |= {f"parallelism.{name}": value for name, value in case.parallelism.items()}
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def bench(case: Case, settings: Settings, *more: str) -> dict:
    """The result of `vit-trainer bench` for a case."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "result.json")
        command = [settings.trainer, "bench", "--json", str(result), "--batch-size", str(case.batch),
                   "--warmup-steps", str(settings.warmup), "--steps", str(settings.steps),
                   "--pairs", str(settings.pairs), *more]
        for field in (*fields(case), *settings.set):
            command += ["--set", field]
        run(command, environment(case) | {"RUST_LOG": "error"}, settings.timeout)
        return json.loads(result.read_text())


def measure_ours(case: Case, settings: Settings, namespaces: Sequence[str] = ()) -> dict:
    """Measures the trainer."""
    if namespaces:
        where = ["--nodes", str(case.ranks), "--addresses", ",".join(link.ADDRESSES),
                 "--launcher", f"ip netns exec {namespaces[0][:-1]}{{node}}"]
    else:
        where = ["--gpus-per-node", str(case.ranks)]
    measured = bench(case, settings, *where)
    kept = ("images_per_second", "seconds_to_first_step", "peak_rss_bytes", "peak_device_bytes", "mfu")
    waited = [(rank["phases"]["sync_exposed"] + rank["phases"]["sync_straggler"]) / (rank["step_ms"]["mean"] / 1e3)
              for rank in measured["ranks"]]
    return {name: measured[name] for name in kept} | {
        "exposed_sync_share": statistics.mean(waited) if len(waited) > 1 else None,
        "sync_share_by_difference": measured["exposed_sync_share"],
    }


def mean_of(ranks: list[dict], name: str) -> float | None:
    """The mean over the ranks that have this value."""
    found = [rank[name] for rank in ranks if rank[name] is not None]
    return statistics.mean(found) if found else None


@dataclasses.dataclass(frozen=True)
class Peer:
    """A program of peer.py."""

    # module (timm's model alone), ddp, fsdp2, tensor, or deepspeed.
    kind: str
    # The mode of torch.compile; None for eager.
    compile: str | None = None
    # fused, or loop (one parameter at a time).
    optimizer: str = "fused"

    def divides(self, case: Case) -> bool:
        """Whether it supports the parallelism of the case."""
        names = case.parallelism.keys()
        return {
            "deepspeed": names <= {"zeroStage"},
            "fsdp2": case.parallelism.get("zeroStage") == 3,
            "tensor": names == {"tensor"},
        }.get(self.kind, not names)

    def __call__(self, case: Case, settings: Settings, namespaces: Sequence[str] = ()) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            plan = {
                "peer": self.kind, "compile": self.compile, "optimizer": self.optimizer, "device": case.device,
                "batch": case.batch, "precision": case.precision, "model": case.sizes, "parallelism": case.parallelism, "folder": folder,
                "warmup_steps": settings.warmup, "steps": settings.steps, "pairs": settings.pairs,
                "started": time.time(),
            }
            paths = [path for path in (os.environ.get("PYTHONPATH"), str(MODULES)) if path]
            env = environment(case) | {"PEER_PLAN": json.dumps(plan), "PYTHONPATH": os.pathsep.join(paths)}
            if case.device == "cpu":
                env |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
            command = [sys.executable, str(HERE / "peer.py")] if self.kind == "module" else torchrun(case, namespaces)
            if namespaces:
                env |= {"GLOO_SOCKET_IFNAME": link.INTERFACE}
            run(command, env, settings.timeout)
            ranks = [json.loads(pathlib.Path(folder, f"rank-{rank}.json").read_text()) for rank in range(case.ranks)]
        result = {
            "images_per_second": sum(rank["images_per_second"] for rank in ranks),
            "exposed_sync_share": mean_of(ranks, "exposed_sync_share"),
            "sync_share_by_difference": ranks[0]["sync_share_by_difference"],
            "seconds_to_first_step": ranks[0]["seconds_to_first_step"],
            "peak_rss_bytes": max(rank["peak_rss_bytes"] for rank in ranks),
        }
        if case.device == "cuda":
            result["peak_device_bytes"] = max(rank["peak_device_bytes"] for rank in ranks)
        return result


def torchrun(case: Case, namespaces: Sequence[str]) -> list[str]:
    """A command that runs one torchrun for all ranks, or one in each namespace."""
    program = [sys.executable, "-m", "torch.distributed.run"]
    script = str(HERE / "peer.py")
    if not namespaces:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return [*program, "--nproc-per-node", str(case.ranks), "--master-addr", "127.0.0.1", "--master-port", str(port),
                script]
    commands = [
        " ".join(["ip", "netns", "exec", name, *program, "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node",
                  "1", "--master-addr", link.ADDRESSES[0], "--master-port", "29500", script])
        for node, name in enumerate(namespaces)
    ]
    # Runs both concurrently, and fails if either does.
    return ["bash", "-c", f"{commands[1]} & {commands[0]} && wait $!"]


def machine() -> dict:
    """The machine of the measurements."""
    model = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "load_at_start": os.getloadavg()[0]}
