"""What peers share besides the protocol: random numbers, and the memory of their process."""
import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def hashes(index, count, first=0):
    """splitmix64 of index·2³²+first, index·2³²+first+1, …"""
    z = np.arange(first, first + count, dtype=np.uint64) + np.uint64(index << 32) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def uniform(index, count, deviation=1):
    """float32 numbers of that index, uniform with a mean of 0 and a standard deviation. numpy computes them in
    chunks that stay in the caches, with a thread a core."""
    values, chunk = np.empty(count, np.float32), 1 << 20

    def fill(first):
        part = values[first:first + chunk]
        unit = (hashes(index, part.size, first) >> np.uint64(40)) / 2.0**24
        part[:] = (2 * unit - 1) * deviation * math.sqrt(3)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(fill, range(0, count, chunk)))
    return values


def forget_peak():
    """Have the system count this process's peak memory anew, where it can."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        pass


def peak():
    """The most memory this process had, in bytes, or 0 where the system does not say."""
    try:
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
    except OSError:
        return 0
