"""What a check gets, and what it gives back."""

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Sequence

import contenders
from contenders import Settings

# With less time left, nothing is started.
LEAST_SECONDS = 5.0


class NotRun(Exception):
    """Why a check, or a part of one, was not tried."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a check."""

    # passed, failed, measured (numbers that nothing judges), or not run.
    status: str
    # One line to read.
    told: str
    result: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Context:
    """The bundle, the machine, and the time that a check has."""

    bundle: pathlib.Path
    # cuda or cpu.
    device: str
    # A folder that is removed at the end.
    work: pathlib.Path
    # Beside the report.
    output: pathlib.Path
    # When the check under way must have ended, by time.monotonic.
    deadline: float
    # Keeps what the check under way has so far, should it not end.
    keep: Callable[[dict], None]
    # Of the checks before this one.
    results: dict[str, dict]

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def trainer(self) -> str:
        return str(self.bundle / "bin/vit-trainer")

    def timeout(self, most: float) -> float:
        """Seconds that a process may take."""
        left = self.deadline - time.monotonic()
        if left < LEAST_SECONDS:
            raise NotRun("the time was out")
        return min(most, left)

    def settings(self, steps: int, warmup: int, most: float) -> Settings:
        return Settings(self.trainer, steps, warmup, timeout=self.timeout(most))

    def run(self, command: Sequence[str], most: float) -> str:
        """Runs a process. Gives its output."""
        env = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR", "RUST_LOG": "error"}
        return contenders.run(command, env, self.timeout(most))
