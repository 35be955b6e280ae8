"""Checks the cost model of scaling studies on a small job with 1 to 8 nodes, connected by links of a given rate. Prints the
error of each point by a model of the others, and the errors of steps and communication by a model from another link.

    make check-prediction

A node is a network namespace behind a switch; the kernel's token bucket filter limits both directions. Ranks emulate slower
devices, so that eight can compute at the same time. Needs root.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NODES = 8
RANKS = [1, 2, 4, 6, 8]
IMAGES_OF_A_RANK = 768
SWITCH = "switch"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def network(megabits_per_second: float):
    """Yields the prefix of the nodes' namespaces, which their numbers follow, and their addresses."""
    prefix = f"vit-node-{os.getpid()}-"
    hub = f"vit-switch-{os.getpid()}"
    made = []
    # A bucket of a millisecond, or of the kernel's largest packet.
    burst = max(int(megabits_per_second * 1e6 / 8 / 1000), 70_000)
    limit = ("root", "tbf", "rate", f"{megabits_per_second}mbit", "burst", str(burst), "latency", "200ms")
    try:
        ip("netns", "add", hub)
        made.append(hub)
        ip("-n", hub, "link", "add", SWITCH, "type", "bridge")
        ip("-n", hub, "link", "set", SWITCH, "up")
        addresses = []
        for node in range(NODES):
            name, port, address = f"{prefix}{node}", f"port{node}", f"10.78.0.{node + 1}"
            ip("netns", "add", name)
            made.append(name)
            ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", hub, "link", "set", port, "master", SWITCH, "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            for namespace, device in ((hub, port), (name, "eth0")):
                subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, *limit], check=True)
            addresses.append(address)
        yield prefix, addresses
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


# Prints the shortest time in which a closed port refuses a connection, in seconds.
REFUSED = """
import socket, sys, time
def once():
    since = time.perf_counter()
    socket.socket().connect_ex((sys.argv[1], 9))
    return time.perf_counter() - since
print(min(once() for _ in range(200)))
"""


def latency(prefix: str, address: str) -> float:
    """Microseconds of a small message from the first node to this address."""
    output = subprocess.run(["ip", "netns", "exec", f"{prefix}0", sys.executable, "-c", REFUSED, address], check=True,
                            capture_output=True, text=True).stdout
    return float(output) * 1e6 / 2


def study(microseconds: float, others: list[float], options: argparse.Namespace) -> dict:
    """1 to 8 ranks, one per node, with three micro-batches. Also predicts them over links of the other rates."""
    job = {
        "image": "localhost/vit-trainer:dev",
        "model": {"imageSize": 32, "patchSize": 8, "hiddenSize": 96, "depth": 6, "heads": 3, "numClasses": 10},
        "data": {"format": "synthetic", "syntheticImages": IMAGES_OF_A_RANK * NODES},
        "training": {"epochs": 1, "microBatchSize": 16, "schedule": {"name": "constant"}},
        "workers": {"nodes": 1, "gpusPerNode": 1, "device": "cpu"},
        "checkpoint": {},
    }
    links = [{"name": name_of(other), "latencyMicroseconds": microseconds, "gigabitsPerSecond": other / 1000}
             for other in others]
    return {
        "apiVersion": "vit-operator.dev/v1alpha1", "kind": "ViTScalingStudy", "metadata": {"name": "prediction"},
        "spec": {
            "template": {"spec": job},
            "measure": {"epochs": options.epochs, "warmupSteps": 2, "repetitions": options.repetitions},
            "sweeps": [{
                # The same number of steps for any number of ranks.
                "name": "ranks", "mode": "Weak", "fractionPerRank": 1 / NODES, "ranks": RANKS, "microBatchSize": [8, 16, 32],
                "variants": [{"name": "identical", "speeds": [options.speed]}],
            }],
            "predict": {"ranks": RANKS[1:], "links": links},
        },
    }


def name_of(rate: float) -> str:
    return f"{rate:g} Mbit/s"


def measure(rate: float, others: list[float], calibration: pathlib.Path | None, options: argparse.Namespace) -> dict:
    """The study's report.json. With an earlier study's calibration, ranks emulate the same devices."""
    folder = options.output / f"{rate:g}"
    # Otherwise a study would continue with results of another version of the trainer.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    manifest = folder / "study.json"
    if calibration is not None:
        (folder / "study").mkdir()
        shutil.copy(calibration, folder / "study")
    with network(rate) as (prefix, addresses):
        manifest.write_text(json.dumps(study(latency(prefix, addresses[1]), others, options)))
        subprocess.run(
            [options.trainer, "study", "-f", str(manifest), "--output", str(folder / "study"),
             "--addresses", ",".join(addresses), "--launcher", f"ip netns exec {prefix}{{node}}"], check=True)
    return json.loads((folder / "study/report.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "target/release/vit-trainer"))
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "target/prediction")
    parser.add_argument("--rates", type=float, nargs="+", default=[1000.0, 200.0], help="rates of links in Mbit/s")
    parser.add_argument("--speed", type=float, default=0.04, help="speed of a rank, as a share of a core's")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=1)
    options = parser.parse_args()
    rates = options.rates
    forecasts, points = {}, {}
    calibration = None
    for rate in rates:
        report = measure(rate, [other for other in rates if other != rate], calibration, options)
        calibration = options.output / f"{rates[0]:g}/study/calibration.json"
        forecasts[rate] = report["forecasts"][0]
        points[rate] = {(point["ranks"], point["microBatchSize"]): point for point in report["points"]}
        errors = []
        for point in forecasts[rate]["heldOut"]:
            error = 100 * (point["predicted"] / point["measured"] - 1)
            errors.append(abs(error))
            print(f"{name_of(rate):>12}  {point['ranks']} ranks of {point['microBatchSize']:2} images: "
                  f"{1e3 * point['measured']:6.1f} ms, {error:+5.1f} %")
        print(f"{name_of(rate):>12}  by a model of the other points: median {statistics.median(errors):.1f} %, at most "
              f"{max(errors):.1f} %")
    for rate, forecast in forecasts.items():
        for prediction in forecast["predictions"]:
            for other in rates:
                if prediction.get("link") != name_of(other):
                    continue
                key = prediction["ranks"], prediction["microBatchSize"]
                if (point := points[other].get(key)) is None:
                    continue
                step, communication = (point[part]["median"] for part in ("stepSeconds", "communicationSeconds"))
                errors = (100 * (prediction["stepSeconds"]["median"] / step - 1),
                          100 * (prediction["parts"]["communication"] / communication - 1))
                print(f"{name_of(other):>12}  {key[0]} ranks of {key[1]} images, measured at {name_of(rate)}: "
                      f"{1e3 * step:6.1f} ms, {errors[0]:+5.1f} %; communication {1e3 * communication:6.1f} ms, "
                      f"{errors[1]:+5.1f} %")


if __name__ == "__main__":
    main()
