"""gpu.json, written after each check, and the table at the end."""

import datetime
import importlib.metadata
import json
import pathlib
import subprocess
import time

from contenders import machine

from .context import Outcome


def gpu() -> dict | None:
    """The driver's description of the first GPU; None without a GPU."""
    fields = ["name", "memory.total", "driver_version", "power.limit"]
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(fields, map(str.strip, output.splitlines()[0].split(","))))


class Report:
    """All outcomes so far, always saved on disk."""

    def __init__(self, file: pathlib.Path, device: str):
        self.file = file
        self.content: dict = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": device,
            "machine": machine() | {"gpu": gpu(), "torch": importlib.metadata.version("torch")},
            "checks": {},
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    def begin(self, name: str) -> None:
        self.content["checks"][name] = {"status": "not ended", "told": "interrupted", "seconds": 0.0, "result": {}}
        self._write()

    def keep(self, name: str, start: float, result: dict) -> None:
        """Saves the partial result of a check that began at `start` by time.monotonic."""
        self.content["checks"][name] |= {"seconds": round(time.monotonic() - start, 1), "result": result}
        self._write()

    def end(self, name: str, start: float, outcome: Outcome) -> None:
        """Saves the outcome. Without a result the partial result stays."""
        self.content["checks"][name] |= {"status": outcome.status, "told": outcome.message}
        self.keep(name, start, outcome.result or self.content["checks"][name]["result"])

    def _write(self) -> None:
        # A rename is atomic, so the report is never partial.
        partial = self.file.with_name(f".{self.file.name}")
        partial.write_text(json.dumps(self.content, indent=2) + "\n")
        partial.replace(self.file)

    def table(self) -> str:
        rows = [("check", "status", "seconds", "")]
        rows += [(name, check["status"], f"{check['seconds']:.1f}", check["told"])
                 for name, check in self.content["checks"].items()]
        return lines_of(rows)


def lines_of(rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as their widest text."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows)
