"""Several ranks on one GPU, over NCCL: each strategy against one rank, checkpoints from one to another, and a killed rank.

NCCL refuses two ranks of one host on the same GPU. Each rank gets a separate `NCCL_HOSTID`, by which NCCL identifies hosts,
so ranks communicate over sockets. Upstream calls this unsupported and does not test it; NCCL 2.28.9 compares only host and
bus (src/init.cc). It proves NCCL's process groups: connecting, order of collectives on the device, memory allocation, abort,
and which rank is blamed. NVLink, P2P, overlap, speed and several ranks on one node (`shardWithinNode`) need several GPUs. On
a CPU the check runs over Gloo.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

import contenders
from safetensors.numpy import load_file

from .context import Context, NotRun, Outcome

# Images of a step, whatever the number of ranks.
BATCH, MICRO_BATCH = 48, 8
# Difference of weights from one rank's after a few steps in fp32.
TOLERANCE = 1e-4
# From the death of a rank to the exit of all others.
BLAME_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Strategy:
    name: str
    ranks: int
    # Ranks that share the same images.
    together: int = 1
    parallelism: dict = dataclasses.field(default_factory=dict)
    training: dict = dataclasses.field(default_factory=dict)


ALONE = Strategy("one rank", 1)
STRATEGIES = [
    Strategy("zeroStage 0", 2),
    Strategy("zeroStage 1", 2, 1, {"zeroStage": 1}),
    Strategy("zeroStage 2", 3, 1, {"zeroStage": 2}),
    Strategy("zeroStage 3", 3, 1, {"zeroStage": 3}),
    Strategy("zeroStage 3, weights stay", 2, 1, {"zeroStage": 3, "reshardAfterForward": False}),
    Strategy("sequence 2", 2, 2, {"sequence": 2, "acrossNodes": True}),
    Strategy("tensor 2", 2, 2, {"tensor": 2, "acrossNodes": True}),
    Strategy("sequence 2, tensor 2, zeroStage 1", 4, 4, {"sequence": 2, "tensor": 2, "acrossNodes": True, "zeroStage": 1}),
]
# The first steps overflow. If one rank skips a step, all ranks skip it.
FP16 = Strategy("fp16", 2, 1, {"zeroStage": 1}, {"precision": "fp16", "lossScale": {"initialScalePower": 20, "hysteresis": 1}})


class Runs:
    """Runs of examples/digits.yaml on a fifth of its images, in one folder."""

    def __init__(self, context: Context):
        self.context = context
        self.checkpoints = context.work / "checkpoints"

    def command(self, name: str, strategy: Strategy, epochs: int) -> list[str]:
        job = json.loads((self.context.bundle / "data/digits.json").read_text())
        job["metadata"]["name"] = name
        accumulation = BATCH * strategy.together // (strategy.ranks * MICRO_BATCH)
        job["spec"]["data"] |= {"fraction": 0.2, "augmentation": {"mixup": 0.8}}
        job["spec"]["training"] = {
            "epochs": epochs, "microBatchSize": MICRO_BATCH, "gradientAccumulationSteps": accumulation,
            "optimizer": {"name": "sgd", "momentum": 0.9, "learningRate": 0.1, "weightDecay": 0.05},
            "schedule": {"name": "constant"}, "clipGradNorm": 1.0, "ema": {"decay": 0.9}, **strategy.training,
        }
        job["spec"]["workers"] = {"nodes": strategy.ranks, "gpusPerNode": 1, "device": self.context.device}
        job["spec"]["parallelism"] = strategy.parallelism
        file = self.context.work / f"{name}.yaml"
        file.write_text(json.dumps(job))
        return [self.context.trainer, "run", "-f", str(file), "--data", str(self.context.bundle / "data/digits"),
                "--checkpoints", str(self.checkpoints), "--launcher", "env NCCL_HOSTID=node{node}"]

    def environment(self, strategy: Strategy) -> dict[str, str]:
        return os.environ | {
            "TORCH_CPP_LOG_LEVEL": "ERROR", "RUST_LOG": "error",
            "CUDA_VISIBLE_DEVICES": ",".join(["0"] * strategy.ranks) if self.context.on_gpu else "",
            "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0",
        }

    def train(self, name: str, strategy: Strategy, epochs: int = 1) -> dict:
        """Starts or continues the job of this name. Returns the newest weights."""
        contenders.run(self.command(name, strategy, epochs), self.environment(strategy), self.context.timeout(60))
        newest = max((self.checkpoints / name).glob("step-*"))
        return load_file(newest / "model.safetensors")

    def log(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.checkpoints / name / "log.jsonl").read_text().splitlines()]


@contextlib.contextmanager
def failures(context: Context, result: dict, name: str) -> Iterator[None]:
    """Records the failure of a part, so that the next part still runs."""
    try:
        yield
    except NotRun:
        raise
    except Exception as error:
        result["failures"][name] = f"{type(error).__name__}: {error}"
    context.keep(result)


def distance(found: dict, expected: dict) -> float:
    return max(float(abs(found[name] - expected[name]).max()) for name in expected)


def rank_process(run: int, rank: int) -> int | None:
    """The process of a rank: a child of an agent, which is a child of the run."""
    for variables in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            is_rank = f"RANK={rank}".encode() in variables.read_bytes().split(b"\0")
            parent = int((variables.parent / "stat").read_text().rsplit(")", 1)[1].split()[1])
            grandparent = int(pathlib.Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        if grandparent == run and is_rank:
            return int(variables.parent.name)
    return None


def used_bytes(context: Context) -> int:
    """GPU memory used by all processes; 0 without a GPU."""
    if not context.on_gpu:
        return 0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(context.run(query, 10).split()[0]) << 20


def killed(runs: Runs) -> dict:
    """Kills one of three training ranks. Returns the time until the others exit, whether they blame it, and the GPU memory
    used before and after the first checkpoint."""
    strategy = Strategy("a killed rank", 3, 1, {"zeroStage": 3})
    process = subprocess.Popen(runs.command("killed", strategy, 1000), env=runs.environment(strategy), stderr=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, text=True)
    log = runs.checkpoints / "killed/log.jsonl"
    before = 0
    try:
        deadline = time.monotonic() + runs.context.timeout(60)
        while not log.exists() or '"checkpoint"' not in log.read_text():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError("three ranks did not reach a checkpoint")
            before = max(before, used_bytes(runs.context))
            time.sleep(0.1)
        after = used_bytes(runs.context)
        os.kill(rank_process(process.pid, 1), signal.SIGKILL)
        start = time.monotonic()
        _, errors = process.communicate(timeout=runs.context.timeout(60))
    finally:
        process.kill()
    return {"seconds": time.monotonic() - start, "code": process.returncode, "blamed": "rank 1 was ended by signal 9" in errors,
            "bytes_before_save": before, "bytes_after_save": after}


def check_strategies(runs: Runs, result: dict) -> None:
    distances: dict[str, float] = result.setdefault("distance", {})
    alone = runs.train("alone", ALONE)
    for number, strategy in enumerate(STRATEGIES):
        with failures(runs.context, result, strategy.name):
            distances[strategy.name] = distance(runs.train(f"strategy-{number}", strategy), alone)
    with failures(runs.context, result, "continued by other strategies"):
        # Sharded over three ranks, then over two by heads, then on one rank.
        chain = (STRATEGIES[3], STRATEGIES[6], ALONE)
        expected = runs.train("alone", ALONE, len(chain))
        result["movement"] = distance(expected, alone)
        for epochs, strategy in enumerate(chain, 1):
            continued = runs.train("chain", strategy, epochs)
        distances["continued by other strategies"] = distance(continued, expected)


def check_fp16(runs: Runs, result: dict) -> None:
    with failures(runs.context, result, FP16.name):
        runs.train("fp16", FP16)
        last = [line for line in runs.log("fp16") if line["kind"] == "train"][-1]
        result["skipped_steps"], result["steps"] = last["skippedSteps"], last["step"]


def check(context: Context) -> Outcome:
    runs = Runs(context)
    result: dict = {"failures": {}}
    check_strategies(runs, result)
    check_fp16(runs, result)
    with failures(context, result, "a killed rank"):
        result["killed"] = killed(runs)
    if result["failures"]:
        names = ", ".join(result["failures"])
        return Outcome("failed", f"{names}: {next(iter(result['failures'].values()))}", result)
    distances = result["distance"]
    worst = max(distances, key=lambda name: distances[name])
    skipped, after = result["skipped_steps"], result["killed"]
    message = (f"weights of {len(distances)} cases within {distances[worst]:.1e} of one rank's ({worst}), which move by "
               f"{result['movement']:.1e}; {skipped} of {result['steps']} steps skipped in fp16; "
               f"all ranks exited {after['seconds']:.1f} s after one was killed")
    is_sound = (distances[worst] < TOLERANCE and result["movement"] > 100 * TOLERANCE and 0 < skipped < result["steps"]
                and after["blamed"] and after["code"] == 137 and after["seconds"] < BLAME_SECONDS)
    return Outcome("passed" if is_sound else "failed", message, result)
