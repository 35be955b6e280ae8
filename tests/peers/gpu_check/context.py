"""The input and the outcome of a check."""

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Sequence

import contenders
from contenders import Settings

# With less time left, no process is started.
LEAST_SECONDS = 5.0


class NotRun(Exception):
    """Why a check, or a part of one, did not run."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a check."""

    # passed, failed, measured (numbers without a limit), or not run.
    status: str
    # One line for the table.
    message: str
    result: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Context:
    """The bundle, the machine, and the time limit of a check."""

    bundle: pathlib.Path
    # cuda or cpu.
    device: str
    # A folder that is removed at the end.
    work: pathlib.Path
    # The report; other output files go next to it.
    output: pathlib.Path
    # When this check must have ended, by time.monotonic.
    deadline: float
    # Saves a partial result in case the check does not finish.
    keep: Callable[[dict], None]
    # Results of earlier checks.
    results: dict[str, dict]

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def trainer(self) -> str:
        return str(self.bundle / "bin/vit-trainer")

    def timeout(self, most: float) -> float:
        """Time limit of a process in seconds."""
        left = self.deadline - time.monotonic()
        if left < LEAST_SECONDS:
            raise NotRun("no time left")
        return min(most, left)

    def settings(self, steps: int, warmup: int, most: float) -> Settings:
        return Settings(self.trainer, steps, warmup, timeout=self.timeout(most))

    def run(self, command: Sequence[str], most: float) -> str:
        """Runs a process and returns its output."""
        env = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR", "RUST_LOG": "error"}
        return contenders.run(command, env, self.timeout(most))
