"""What has to be measured in a process of its own: memory, long sessions, and the start.

python -m benchmarks.soak soak BUNDLE STEPS
python -m benchmarks.soak first BUNDLE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from nemostream.engine.engine import Engine
from nemostream.runtimes.onnx import OnnxRuntime

_CHUNK = 5120  # samples of 320 ms
_FURTHER = 15


def resident() -> float:
    """Resident memory of this process in MB (10^6 bytes)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


def soak(bundle: Path, steps: int) -> dict[str, float]:
    """Memory of one stream, of more, and what a long session does to memory and step time."""
    engine = Engine(OnnxRuntime(bundle, threads=1, verify=False))
    generator = np.random.default_rng(0)
    taken, stream = [], engine.open(0, (56, 3))
    one = after = 0.0
    for step in range(steps):
        samples = generator.standard_normal(_CHUNK, dtype=np.float32) * np.float32(0.1 * generator.random())
        began = time.perf_counter()
        stream.feed(samples)
        if stream.framer.ready():
            engine.step([stream])
        taken.append(time.perf_counter() - began)
        if step == min(50, steps // 2):
            one = resident()
        after = resident()
    several = [stream, *(engine.open(0, (56, 3)) for _ in range(_FURTHER))]
    for _ in range(20):
        for each in several:
            each.feed(samples)
        for each in several:  # one at a time, so that only what streams keep is counted
            if each.framer.ready():
                engine.step([each])
    times = np.array(taken[3:]) * 1000
    return {
        "one": one,
        "growth": after - one,
        "more": (resident() - after) / _FURTHER,
        "median": float(np.median(times)),
        "p99": float(np.percentile(times, 99) / np.median(times)),
    }


def first(bundle: Path) -> dict[str, float]:
    """Load as a user would, files hashed, and stop at the first token."""
    runtime = OnnxRuntime(bundle, threads=1)
    engine = Engine(runtime)
    stream = engine.open(0, (56, 3))
    generator = np.random.default_rng(0)
    for step in range(100):
        stream.feed(generator.standard_normal(_CHUNK, dtype=np.float32) * np.float32(0.1))
        if stream.framer.ready() and engine.step([stream])[0]:
            return {"steps": step}
    return {"steps": 100}


if __name__ == "__main__":
    if sys.argv[1] == "soak":
        print(json.dumps(soak(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        print(json.dumps(first(Path(sys.argv[2]))))
