"""Two network namespaces connected by a link with a given delay and rate, so that communication matters on one machine.

The kernel's netem would also work, but is not always built. This needs only TUN: each namespace has a TUN interface, and
this process forwards packets between them with the delay and rate. Needs root.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import threading
import time

ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "vit0"
# Large packets keep the cost of forwarding below that of the measured work.
MTU = 65000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


def _ip(*words):
    subprocess.run(["ip", *words], check=True)


def _open_tun(namespace):
    """Creates a TUN interface in the namespace, and returns its file descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(other, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), IFF_TUN | IFF_NO_PI))
        return tun
    finally:
        libc.setns(own, CLONE_NEWNET)
        os.close(own)
        os.close(other)


def _carry(source, target, delay, bytes_per_second, stop):
    """Forwards packets in one direction until `stop`."""
    waiting = []  # (due, packet), due ascending
    line_free = 0.0
    while not stop.is_set():
        timeout = min(0.2, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.2
        readable, _, _ = select.select([source], [], [], timeout)
        if readable:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(source, MTU + 100)
                    line_free = max(line_free, time.monotonic()) + len(packet) / bytes_per_second
                    waiting.append((line_free + delay, packet))
        now = time.monotonic()
        sent = 0
        for due, packet in waiting:
            if due > now:
                break
            with contextlib.suppress(BlockingIOError):  # a full interface drops packets
                os.write(target, packet)
            sent += 1
        del waiting[:sent]


@contextlib.contextmanager
def link(delay_seconds, bits_per_second):
    """Yields the names of two namespaces, whose addresses are ADDRESSES on INTERFACE."""
    names = tuple(f"vit-link-{os.getpid()}-{node}" for node in (0, 1))
    stop, threads, tuns = threading.Event(), [], []
    try:
        for name, address in zip(names, ADDRESSES):
            _ip("netns", "add", name)
            tuns.append(_open_tun(name))
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "mtu", str(MTU), "txqueuelen", "10000", "up")
        for source, target in (tuns, tuns[::-1]):
            arguments = (source, target, delay_seconds, bits_per_second / 8, stop)
            threads.append(threading.Thread(target=_carry, args=arguments))
            threads[-1].start()
        yield names
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for tun in tuns:
            os.close(tun)
        for name in names[:len(tuns)]:
            _ip("netns", "delete", name)
