"""Runs the checks one after the other within a time limit, and saves each result."""

import argparse
import dataclasses
import functools
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable

from contenders import CannotRun

from . import ablation, digits, events, host_stops, input_pipeline, memory, nccl, offload, overlap, parity, readings, speed, trace
from .context import LEAST_SECONDS, Context, NotRun, Outcome
from .report import Report


@dataclasses.dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Context], Outcome]
    # Time limit; None for all the time that later checks do not need.
    seconds: float | None


CHECKS = [
    Check("parity", parity.check, 120),
    Check("digits", digits.check, 60),
    Check("nccl", nccl.check, 180),
    Check("events", events.check, 30),
    Check("host_stops", host_stops.check, 50),
    Check("speed", speed.check, None),
    Check("ablation", ablation.check, 80),
    Check("overlap", overlap.check, 30),
    Check("offload", offload.check, 40),
    Check("readings", readings.check, 30),
    Check("input", input_pipeline.check, 25),
    Check("memory", memory.check, 15),
    Check("trace", trace.check, 20),
]


def deadline_of(check: Check, chosen: list[Check], end: float) -> float:
    if check.seconds is not None:
        return min(end, time.monotonic() + max(check.seconds, 2 * LEAST_SECONDS))
    later = chosen[chosen.index(check) + 1:]
    return end - sum(one.seconds or 0.0 for one in later)


def outcome_of(check: Check, context: Context) -> Outcome:
    """Runs a check. Any exception becomes its outcome, so the next check runs."""
    try:
        context.timeout(0)
        return check.run(context)
    except NotRun as error:
        return Outcome("not run", str(error))
    except CannotRun as error:
        return Outcome("failed", str(error))
    except Exception as error:
        return Outcome("failed", f"{type(error).__name__}: {error}")


def run(bundle: pathlib.Path, options: argparse.Namespace) -> Report:
    report = Report(options.output, options.device)
    chosen = [check for check in CHECKS if not options.only or check.name in options.only]
    end = time.monotonic() + options.seconds
    results: dict[str, dict] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        for check in chosen:
            start = time.monotonic()
            folder = pathlib.Path(work, check.name)
            folder.mkdir()
            report.begin(check.name)
            keep = functools.partial(report.keep, check.name, start)
            deadline = deadline_of(check, chosen, end)
            context = Context(bundle, options.device, folder, options.output, deadline, keep, results)
            outcome = outcome_of(check, context)
            report.end(check.name, start, outcome)
            results[check.name] = report.content["checks"][check.name]["result"]
            print(f"{check.name}: {outcome.status} after {time.monotonic() - start:.0f} s: {outcome.message}",
                  file=sys.stderr, flush=True)
    return report


def main(bundle: pathlib.Path) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    has_gpu = pathlib.Path("/dev/nvidiactl").exists()
    parser.add_argument("--output", type=pathlib.Path, default=bundle / "gpu.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if has_gpu else "cpu",
                        help="default: cuda if there is a GPU; a CPU gets small models and few steps")
    parser.add_argument("--only", nargs="+", choices=[check.name for check in CHECKS],
                        help="checks to run; default: all")
    parser.add_argument("--seconds", type=float, default=580, help="time limit for all checks together (580)")
    options = parser.parse_args()
    options.output = options.output.resolve()
    # Exit as on Ctrl-C: processes end, and saved results stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    report = run(bundle, options)
    print(report.table())
    measured = report.content["checks"].get("speed", {}).get("result")
    if measured:
        print(f"\n{speed.table(measured)}")
    sys.exit(any(check["status"] == "failed" for check in report.content["checks"].values()))
