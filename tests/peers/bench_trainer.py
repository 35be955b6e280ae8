"""Compares the trainer with PyTorch DDP (eager and compiled), FSDP2, tensor parallelism and DeepSpeed on CPUs: same model,
batch, precision, ranks and threads, interleaved, medians over rounds. Writes target/bench/trainer.json, prints a table.

    make bench-trainer
    make bench-trainer BENCH='--cases vit-ti16-224/fp32/2 --rounds 5'

docs/performance.md defines each number. For GPUs, use `make gpu-check`.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys

import link
from contenders import CannotRun, Case, Contender, Peer, Settings, machine, measure_ours, threads_of

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# A slow network, so that communication matters for a small model on two cores: 1 Gbit/s, 1 ms each way.
LINK = {"delay_seconds": 1e-3, "bits_per_second": 1e9}
BATCHES = {"vit-ti16-224": 16, "vit-cifar-p4": 128}
CASES = [
    *(Case(model, batch, precision, ranks)
      for model, batch in BATCHES.items() for precision in ("fp32", "bf16") for ranks in (1, 2)),
    *(Case(model, batch, "fp32", 2, link=LINK) for model, batch in BATCHES.items()),
    *(Case("vit-s16-224", 8, "fp32", 2, parallelism=parallelism) for parallelism in (
        {"zeroStage": 1}, {"zeroStage": 2}, {"zeroStage": 3, "reshardAfterForward": False}, {"zeroStage": 3},
        {"tensor": 2}, {"sequence": 2},
    )),
]

CONTENDERS: dict[str, Contender] = {
    "ours": measure_ours,
    "pytorch_ddp_eager": Peer("ddp"),
    "pytorch_ddp_compile": Peer("ddp", compile="default"),
    "pytorch_fsdp2": Peer("fsdp2"),
    "pytorch_tensor_parallel": Peer("tensor"),
    "deepspeed": Peer("deepspeed"),
}


# Why a contender is omitted from a case.
OTHER = "does not support this parallelism"


def name_of(case: Case) -> str:
    parallelism = "".join(f"/{name}-{value}" for name, value in case.parallelism.items())
    return f"{case.model}/{case.precision}/{case.ranks}{parallelism}" + ("/link" if case.link else "")


def medians(rounds: list[dict]) -> dict:
    """The median of each number over the rounds."""
    names = {name for result in rounds for name in result}
    values = {name: [result[name] for result in rounds if result.get(name) is not None] for name in sorted(names)}
    return {name: statistics.median(found) if found else None for name, found in values.items()}


def ratio(ours: list[dict], theirs: list[dict], name: str) -> float | None:
    """Median over rounds of our number divided by theirs; both ran in succession."""
    pairs = [(our[name], their[name]) for our, their in zip(ours, theirs) if our.get(name) and their.get(name)]
    return statistics.median(our / their for our, their in pairs) if pairs else None


def measure_once(contender: Contender, case: Case, settings: Settings) -> dict:
    if case.link is None:
        return contender(case, settings, ())
    with link.link(**case.link) as namespaces:
        return contender(case, settings, namespaces)


def measure_case(case: Case, settings: Settings, options: argparse.Namespace) -> dict:
    """Measures a case: in each round, every contender runs once."""
    rounds: dict[str, list[dict]] = {contender: [] for contender in CONTENDERS}
    why: dict[str, str] = {}
    for contender in CONTENDERS:
        if options.only and contender not in options.only:
            why[contender] = "not requested"
        elif isinstance(CONTENDERS[contender], Peer) and not CONTENDERS[contender].divides(case):
            why[contender] = OTHER
        elif case.link and os.geteuid() != 0:
            why[contender] = "network namespaces need root"
    for number in range(options.rounds):
        for contender, measure in CONTENDERS.items():
            if contender in why:
                continue
            try:
                result = measure_once(measure, case, settings)
            except CannotRun as error:
                why[contender] = str(error)
                continue
            rounds[contender].append(result)
            print(f"{name_of(case)} round {number + 1} {contender}: {result['images_per_second']:.1f} images/s",
                  file=sys.stderr, flush=True)
    result = {"name": name_of(case), "device": case.device, "ranks": case.ranks, "batch": case.batch,
              "precision": case.precision, "parallelism": case.parallelism, "link": case.link, "threads": threads_of(case)}
    for contender, results in rounds.items():
        result[contender] = medians(results) if results and contender not in why else None
    if why:
        result["why"] = why
    ours, eager = rounds["ours"], rounds["pytorch_ddp_eager"]
    result["ratio_vs_eager"] = ratio(ours, eager, "images_per_second")
    result["ratio_vs_compile"] = ratio(ours, rounds["pytorch_ddp_compile"], "images_per_second")
    for name, field in (("first_step", "seconds_to_first_step"), ("rss", "peak_rss_bytes")):
        result[f"{name}_ratio_vs_eager"] = ratio(ours, eager, field)
    for name in ("pytorch_ddp_eager", "deepspeed"):
        result[f"exposed_ratio_vs_{name}"] = ratio(ours, rounds[name], "exposed_sync_share")
    result["rounds"] = rounds
    return result


def table(cases: list[dict]) -> str:
    """The results as a table."""
    head = ("case", "contender", "images/s", "ratio", "exposed", "first step s", "memory MB")
    rows = [head]
    for case in cases:
        for contender in CONTENDERS:
            result = case[contender]
            if result is None:
                continue
            against = ratio(case["rounds"]["ours"], case["rounds"][contender], "images_per_second")
            exposed = result.get("exposed_sync_share")
            rows.append((
                case["name"], contender, f"{result['images_per_second']:.1f}",
                "" if contender == "ours" or against is None else f"{against:.2f}",
                "" if exposed is None else f"{exposed * 100:.1f} %", f"{result['seconds_to_first_step']:.2f}",
                f"{result['peak_rss_bytes'] / 1e6:.0f}",
            ))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    for case in cases:
        for contender, why in case.get("why", {}).items():
            if why == OTHER:
                continue
            lines.append(f"{case['name']}: no {contender}: {why}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", help="names of cases, or parts of names (default: all)")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, help="contenders (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=6, help="pairs of steps with and without reduction, with several ranks")
    parser.add_argument("--trainer", default=str(ROOT / "target/release/vit-trainer"))
    parser.add_argument("--set", action="append", default=[], help="FIELD=VALUE for the trainer's manifest")
    parser.add_argument("--output", default=str(ROOT / "target/bench/trainer.json"))
    options = parser.parse_args()
    if shutil.which(options.trainer) is None:
        sys.exit(f"{options.trainer} does not exist: run `make release`")
    if importlib.util.find_spec("torch") is None:
        sys.exit("this Python has no torch: run `make bench-trainer`, which uses the peers' Python")
    chosen = [case for case in CASES if not options.cases or any(part in name_of(case) for part in options.cases)]
    if not chosen:
        sys.exit(f"no such case; the cases are {', '.join(map(name_of, CASES))}")
    # Like Ctrl-C: ends processes and removes namespaces.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    settings = Settings(options.trainer, options.steps, options.warmup, options.pairs, options.set)
    about, output = machine(), pathlib.Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    results = []
    for case in chosen:
        results.append(measure_case(case, settings, options))
        # Saves after each case, in case the rest is interrupted.
        output.write_text(json.dumps({"machine": about, "cases": results}, indent=2) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
