"""Timed events tell how long the device was at work while the host went on, and copies on a stream of their own are waited
for: the tests of trainer/torch-ext/tests/device.rs, with work of a known length on the device."""

import re

from contenders import CannotRun

from .context import Context, Outcome


def check(context: Context) -> Outcome:
    # One at a time: each looks at the clock while the device is at work.
    command = [str(context.bundle / "bin/device-tests"), "--nocapture", "--test-threads=1"]
    told = context.run(command, 60)
    devices = set(re.findall(r"device: (\w+)", told))
    # They use a GPU where they find one.
    if context.on_gpu and devices != {"cuda"}:
        raise CannotRun(f"the tests ran on {' and '.join(devices) or 'nothing'}, not on the GPU")
    passed = re.search(r"(\d+) passed", told)
    return Outcome("passed", f"{passed[1] if passed else 'all'} tests on {' and '.join(devices)}")
