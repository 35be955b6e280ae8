"""The tests of trainer/torch-ext/tests/device.rs, with device work of a known length: events time the device while the host
continues, and copies on a side stream are waited for."""

import re

from contenders import CannotRun

from .context import Context, Outcome


def check(context: Context) -> Outcome:
    # One at a time: each measures time while the device is busy.
    command = [str(context.bundle / "bin/device-tests"), "--nocapture", "--test-threads=1"]
    output = context.run(command, 60)
    devices = set(re.findall(r"device: (\w+)", output))
    # They use a GPU if they find one.
    if context.on_gpu and devices != {"cuda"}:
        raise CannotRun(f"the tests ran on {' and '.join(devices) or 'nothing'}, not on the GPU")
    passed = re.search(r"(\d+) passed", output)
    return Outcome("passed", f"{passed[1] if passed else 'all'} tests on {' and '.join(devices)}")
