"""Measures the trainer beside PyTorch DDP (eager and compiled) and DeepSpeed: same model, batch, precision, ranks and
threads, interleaved, medians over rounds. Writes target/bench/trainer.json and prints a table.

    make bench-trainer
    make bench-trainer BENCH='--cases vit-ti16-224/fp32/2 --rounds 5'

docs/performance.md says how each number is defined, and how to run the cases that need a GPU.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import link

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# One process of a peer may have to compile its model.
TIMEOUT = 900

MODELS = {
    "vit-ti16-224": {"imageSize": 224, "patchSize": 16, "hiddenSize": 192, "depth": 12, "heads": 3, "numClasses": 1000},
    "vit-cifar-p4": {"imageSize": 32, "patchSize": 4, "hiddenSize": 192, "depth": 12, "heads": 3, "numClasses": 10},
    "vit-b16-224": {"imageSize": 224, "patchSize": 16, "hiddenSize": 768, "depth": 12, "heads": 12, "numClasses": 1000},
}


def case(model, batch, precision, ranks, device="cpu", link_settings=None):
    name = f"{model}/{precision}/{ranks}"
    if device == "cuda":
        name = f"{model}/{precision}/batch-{batch}"
    if link_settings:
        name += "/link"
    return {"name": name, "model": model, "device": device, "ranks": ranks, "batch": batch, "precision": precision,
            "link": link_settings}


# A slow network, so that communication matters beside a small model on two cores: 1 Gbit/s, 1 ms each way.
LINK = {"delay_seconds": 1e-3, "bits_per_second": 1e9}
CASES = [
    *(case(model, batch, precision, ranks)
      for model, batch in (("vit-ti16-224", 16), ("vit-cifar-p4", 128))
      for precision in ("fp32", "bf16") for ranks in (1, 2)),
    *(case(model, batch, "fp32", 2, link_settings=LINK) for model, batch in (("vit-ti16-224", 16), ("vit-cifar-p4", 128))),
    *(case("vit-b16-224", batch, "bf16", 1, "cuda") for batch in (64, 128, 256)),
]


class CannotRun(Exception):
    """Why a contender cannot run a case."""


def stop(process):
    """Ends a process group: gently first, as torchrun's workers are in groups of their own, which it ends itself."""
    for sent, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, sent)
            process.wait(patience)


def run(command, env, timeout=TIMEOUT):
    """Runs a contender in a process group of its own; its last words if it fails."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        code = None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = f"no end within {timeout} s"
        finally:
            if code != 0:
                stop(process)
        if code != 0:
            output.seek(0)
            lines = [line.strip() for line in output.read().splitlines() if line.strip()]
            told = [line for line in lines if "Error" in line or "error" in line] or lines
            raise CannotRun(f"{pathlib.Path(command[0]).name} ended with {code}: {' | '.join(told[-2:])[:400]}")


def threads_of(the_case):
    return max(1, os.cpu_count() // the_case["ranks"])


def environment(the_case):
    """What all contenders get."""
    return os.environ | {"OMP_NUM_THREADS": str(threads_of(the_case)), "TORCH_CPP_LOG_LEVEL": "ERROR"}


def measure_ours(the_case, steps, pairs, namespaces, options):
    sizes = {"name": None} | MODELS[the_case["model"]]
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "result.json")
        command = [options.trainer, "bench", "--json", str(result), "--batch-size", str(the_case["batch"]),
                   "--warmup-steps", str(options.warmup), "--steps", str(steps), "--pairs", str(pairs),
                   "--set", f"workers.device={the_case['device']}"]
        for field, value in sizes.items():
            command += ["--set", f"model.{field}={json.dumps(value)}"]
        if the_case["precision"] != "fp32":
            command += ["--set", f"training.precision={the_case['precision']}"]
        for setting in options.set:
            command += ["--set", setting]
        if namespaces:
            command += ["--nodes", str(the_case["ranks"]), "--addresses", ",".join(link.ADDRESSES),
                        "--launcher", f"ip netns exec {namespaces[0][:-1]}{{node}}"]
        else:
            command += ["--gpus-per-node", str(the_case["ranks"])]
        run(command, environment(the_case) | {"RUST_LOG": "error"})
        measured = json.loads(result.read_text())
    kept = ("images_per_second", "seconds_to_first_step", "peak_rss_bytes", "peak_device_bytes", "mfu")
    waited = [(rank["phases"]["sync_exposed"] + rank["phases"]["sync_straggler"]) / (rank["step_ms"]["mean"] / 1e3)
              for rank in measured["ranks"]]
    return {name: measured[name] for name in kept} | {
        "exposed_sync_share": statistics.mean(waited) if len(waited) > 1 else None,
        "sync_share_by_difference": measured["exposed_sync_share"],
    }


def mean_of(ranks, name):
    """Of the ranks that have it."""
    found = [rank[name] for rank in ranks if rank[name] is not None]
    return statistics.mean(found) if found else None


def peer(kind, compile_mode=None):
    """A function that measures a peer once."""

    def measure(the_case, steps, pairs, namespaces, options):
        with tempfile.TemporaryDirectory() as folder:
            plan = {
                "peer": kind, "compile": compile_mode, "device": the_case["device"], "batch": the_case["batch"],
                "precision": the_case["precision"], "model": MODELS[the_case["model"]], "folder": folder,
                "warmup_steps": options.warmup, "steps": steps, "pairs": pairs, "started": time.time(),
            }
            env = environment(the_case) | {"PEER_PLAN": json.dumps(plan)}
            if the_case["device"] == "cpu":
                env |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
            launch(the_case, namespaces, env, options)
            ranks = [json.loads(pathlib.Path(folder, f"rank-{rank}.json").read_text())
                     for rank in range(the_case["ranks"])]
        result = {
            "images_per_second": sum(rank["images_per_second"] for rank in ranks),
            "exposed_sync_share": mean_of(ranks, "exposed_sync_share"),
            "sync_share_by_difference": ranks[0]["sync_share_by_difference"],
            "seconds_to_first_step": ranks[0]["seconds_to_first_step"],
            "peak_rss_bytes": max(rank["peak_rss_bytes"] for rank in ranks),
        }
        if the_case["device"] == "cuda":
            result["peak_device_bytes"] = max(rank["peak_device_bytes"] for rank in ranks)
        return result

    return measure


def launch(the_case, namespaces, env, options):
    """torchrun: one for all ranks, or one in each namespace."""
    torchrun = [options.python, "-m", "torch.distributed.run"]
    script = str(HERE / "peer.py")
    if not namespaces:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return run([*torchrun, "--nproc-per-node", str(the_case["ranks"]), "--master-addr", "127.0.0.1",
                    "--master-port", str(port), script], env)
    env = env | {"GLOO_SOCKET_IFNAME": link.INTERFACE}
    commands = [
        " ".join(["ip", "netns", "exec", name, *torchrun, "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node",
                  "1", "--master-addr", link.ADDRESSES[0], "--master-port", "29500", script])
        for node, name in enumerate(namespaces)
    ]
    # Both at once; the command fails where either does.
    return run(["bash", "-c", f"{commands[1]} & {commands[0]} && wait $!"], env)


CONTENDERS = {
    "ours": measure_ours,
    "pytorch_ddp_eager": peer("ddp"),
    "pytorch_ddp_compile": peer("ddp", "default"),
    "pytorch_ddp_max_autotune": peer("ddp", "max-autotune"),
    "deepspeed": peer("deepspeed"),
}


def cannot(the_case, contender):
    """Why a contender is not even tried."""
    if the_case["device"] == "cuda" and not pathlib.Path("/dev/nvidiactl").exists():
        return "this machine has no GPU: /dev/nvidiactl does not exist"
    if the_case["link"] and os.geteuid() != 0:
        return "network namespaces need root"
    if contender == "pytorch_ddp_max_autotune" and the_case["device"] == "cpu":
        return "on a CPU it equals compile for a model of library matrix products"
    return None


def medians(rounds):
    """Of each number over the rounds."""
    names = {name for result in rounds for name in result}
    values = {name: [result[name] for result in rounds if result.get(name) is not None] for name in sorted(names)}
    return {name: statistics.median(found) if found else None for name, found in values.items()}


def ratio(ours, theirs, name):
    """Median over rounds of ours to theirs: both ran one after the other."""
    pairs = [(our[name], their[name]) for our, their in zip(ours, theirs) if our.get(name) and their.get(name)]
    return statistics.median(our / their for our, their in pairs) if pairs else None


def measure_case(the_case, options):
    """One case: rounds in each of which every contender runs once."""
    rounds = {contender: [] for contender in CONTENDERS}
    why = {contender: cannot(the_case, contender) for contender in CONTENDERS}
    steps, pairs = options.steps, options.pairs if the_case["ranks"] > 1 else 0
    for number in range(options.rounds):
        for contender, measure in CONTENDERS.items():
            if options.only and contender not in options.only:
                why[contender] = "not asked for"
            if why[contender]:
                continue
            try:
                if the_case["link"]:
                    with link.link(**the_case["link"]) as namespaces:
                        result = measure(the_case, steps, pairs, namespaces, options)
                else:
                    result = measure(the_case, steps, pairs, None, options)
            except CannotRun as error:
                why[contender] = str(error)
                continue
            rounds[contender].append(result)
            print(f"{the_case['name']} round {number + 1} {contender}: {result['images_per_second']:.1f} images/s",
                  file=sys.stderr, flush=True)
    case_result = {name: the_case[name] for name in ("name", "device", "ranks", "batch", "precision", "link")}
    case_result["threads"] = threads_of(the_case)
    for contender, results in rounds.items():
        case_result[contender] = medians(results) if results and not why[contender] else None
        if case_result[contender] is None:
            case_result.setdefault("why", {})[contender] = why[contender]
    ours = rounds["ours"]
    case_result["ratio_vs_eager"] = ratio(ours, rounds["pytorch_ddp_eager"], "images_per_second")
    case_result["ratio_vs_compile"] = ratio(ours, rounds["pytorch_ddp_compile"], "images_per_second")
    ours_now = case_result["ours"]
    for contender in rounds:
        # The same FLOPs an image on the same GPU: utilisation is in proportion to images a second.
        if ours_now and ours_now.get("mfu") and case_result[contender]:
            speed = case_result[contender]["images_per_second"] / ours_now["images_per_second"]
            case_result[contender]["mfu"] = ours_now["mfu"] * speed
    case_result["ratio_vs_max_autotune"] = ratio(ours, rounds["pytorch_ddp_max_autotune"], "images_per_second")
    for name, field in (("first_step", "seconds_to_first_step"), ("rss", "peak_rss_bytes")):
        case_result[f"{name}_ratio_vs_eager"] = ratio(ours, rounds["pytorch_ddp_eager"], field)
    for name in ("pytorch_ddp_eager", "deepspeed"):
        case_result[f"exposed_ratio_vs_{name}"] = ratio(ours, rounds[name], "exposed_sync_share")
    case_result["rounds"] = rounds
    return case_result


def table(cases):
    """The results as lines to read."""
    head = ("case", "contender", "images/s", "ratio", "exposed", "first step s", "memory MB", "MFU")
    rows = [head]
    for the_case in cases:
        for contender in CONTENDERS:
            result = the_case[contender]
            if result is None:
                continue
            ours = the_case["rounds"]["ours"]
            against = ratio(ours, the_case["rounds"][contender], "images_per_second")
            exposed = result.get("exposed_sync_share")
            memory = result.get("peak_device_bytes") or result["peak_rss_bytes"]
            mfu = result.get("mfu")
            rows.append((
                the_case["name"], contender, f"{result['images_per_second']:.1f}",
                "" if contender == "ours" or against is None else f"{against:.2f}",
                "" if exposed is None else f"{exposed * 100:.1f} %", f"{result['seconds_to_first_step']:.2f}",
                f"{memory / 1e6:.0f}", "" if mfu is None else f"{mfu * 100:.1f} %",
            ))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    for the_case in cases:
        for contender, why in the_case.get("why", {}).items():
            lines.append(f"{the_case['name']}: no {contender}: {why}")
    return "\n".join(lines)


def machine():
    """What was measured on."""
    model = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "load_at_start": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", help="names of cases, or parts of them; all if not given")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, help="contenders; all if not given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=6, help="steps with and without reduction, where ranks are several")
    parser.add_argument("--trainer", default=str(ROOT / "target/release/vit-trainer"))
    parser.add_argument("--python", default=sys.executable, help="Python of the peers")
    parser.add_argument("--set", action="append", default=[], help="FIELD=VALUE for the trainer's manifest")
    parser.add_argument("--output", default=str(ROOT / "target/bench/trainer.json"))
    options = parser.parse_args()
    if shutil.which(options.trainer) is None:
        sys.exit(f"{options.trainer} is not there: run `make release`")
    if importlib.util.find_spec("torch") is None:
        sys.exit("this Python has no torch: run `make bench-trainer`, which uses the peers' own")
    chosen = [the_case for the_case in CASES
              if not options.cases or any(part in the_case["name"] for part in options.cases)]
    if not chosen:
        sys.exit(f"no case is named so; there are {', '.join(the_case['name'] for the_case in CASES)}")
    # As Ctrl-C does it: processes and namespaces go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    about, output = machine(), pathlib.Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    results = []
    for the_case in chosen:
        results.append(measure_case(the_case, options))
        # After each case: what was measured stays if the rest is interrupted.
        output.write_text(json.dumps({"machine": about, "cases": results}, indent=2) + "\n")
    print(table(results))


main()
