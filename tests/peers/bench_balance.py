"""Measures the gain of sharing images by speed among different ranks (`training.balance: Weighted`), compared with even
shares and with each rank alone. Slower devices are emulated (`--speeds`): a rank pauses before and after its forward pass.
All ranks are slow, so that they seldom compute at the same time on few cores.

    make bench-balance

Writes target/bench/balance.json and prints a table.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = {"imageSize": 32, "hiddenSize": 96, "depth": 3, "heads": 3, "numClasses": 10}


@dataclasses.dataclass(frozen=True)
class Case:
    """Ranks with these speeds."""

    name: str
    speeds: tuple[float, ...]
    # Patch size, and images per rank and step with even shares: enough that the time per image does not depend on the
    # number of images.
    patch: int
    batch: int
    # Runs of fewer ranks, whose sum is compared with the weighted run.
    parts: tuple[tuple[float, ...], ...]
    # Whether to also measure even shares: a step may last minutes.
    even: bool = True


CASES = [
    Case("1, 1/2, 1/6 of the fastest", (0.1, 0.05, 0.1 / 6), 4, 48, ((0.1,), (0.05,), (0.1 / 6,))),
    Case("the study's: 1, 1, 1, 0.3, 0.01", (0.1, 0.1, 0.1, 0.03, 0.001), 8, 64, ((0.1, 0.1, 0.1),), even=False),
]


def bench(trainer: str, calibration: pathlib.Path, case: Case, speeds: tuple[float, ...], warmup: int, steps: int,
          balance: str) -> float:
    """Images per second."""
    values = {"workers.device": "cpu", "model": MODEL | {"patchSize": case.patch}, "training.balance": balance}
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "result.json")
        command = [trainer, "bench", "--json", str(result), "--nodes", str(len(speeds)), "--batch-size", str(case.batch),
                   "--speeds", ",".join(map(str, speeds)), "--calibration", str(calibration), "--warmup-steps", str(warmup),
                   "--steps", str(steps)]
        for name, value in values.items():
            command += ["--set", f"{name}={json.dumps(value)}"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "RUST_LOG": "error"}
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
        return json.loads(result.read_text())["images_per_second"]


def measure(case: Case, options: argparse.Namespace) -> dict:
    rounds = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            # All runs of a round emulate the same devices.
            run = functools.partial(bench, options.trainer, pathlib.Path(folder, "calibration.json"), case)
            parts = sum(run(part, 5, 20, "Off") for part in case.parts)
            even = run(case.speeds, 2, 10, "Off") if case.even else None
            # The warm-up includes one window of measuring speeds.
            weighted = run(case.speeds, 57, 40, "Weighted")
        rounds.append({"parts": parts, "even": even, "weighted": weighted, "ratio": weighted / parts})
        print(f"{case.name}, round {number + 1}: {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)
    measured = [name for name, value in rounds[0].items() if value is not None]
    medians = {name: statistics.median(found[name] for found in rounds) for name in measured}
    return {"name": case.name, "speeds": case.speeds, "parts_of": case.parts, **medians, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trainer", default=str(ROOT / "target/release/vit-trainer"))
    parser.add_argument("--output", default=str(ROOT / "target/bench/balance.json"))
    options = parser.parse_args()
    if shutil.which(options.trainer) is None:
        sys.exit(f"{options.trainer} does not exist: run `make release`")
    results = [measure(case, options) for case in CASES]
    output = pathlib.Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"cases": results}, indent=2) + "\n")
    print(f"{'ranks of speeds':34}{'even':>10}{'compared with':>16}{'weighted':>10}{'ratio':>8}")
    for result in results:
        even = f"{result['even']:.1f}" if "even" in result else ""
        print(f"{result['name']:34}{even:>10}{result['parts']:16.1f}{result['weighted']:10.1f}{result['ratio']:8.2f}")


if __name__ == "__main__":
    main()
