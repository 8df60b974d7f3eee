"""What has to be measured in a process of its own: memory, long sessions, and the start.

python -m benchmarks.processes soak BUNDLE STEPS    one long session, timed; prints JSON
python -m benchmarks.processes word                 the embedded model up to the first word of its clip
python -m benchmarks.processes chunk BUNDLE         a bundle up to the end of the first chunk
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from nemostream.engine.engine import Engine
from nemostream.runtimes.onnx import OnnxRuntime

_CHUNK = 5120  # samples of 320 ms
_FURTHER = 15
_SETTLED = 50  # steps after which memory counts as that of one stream
_PACKET = 320  # samples of 20 ms


def resident() -> float:
    """Resident memory of this process in MB (10^6 bytes)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def soak(bundle: Path, steps: int) -> dict[str, float]:
    """Memory of one stream, of more, and what a long session does to memory and step time.

    A step is all that a chunk costs: features, encoder, decoding.
    """
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
        if step == min(_SETTLED, steps // 2):
            one = resident()
        if step % 1000 == 999:
            print(f"  step {step + 1} of {steps}: {resident():.1f} MB", file=sys.stderr, flush=True)
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
        "longest": float(times.max()),
    }


def word() -> str:
    """The first word of the embedded clip, by the public way: `nemostream.load` and `Model.stream`."""
    import nemostream
    from nemostream.audio import load_audio
    from nemostream.loading import embedded_clip

    samples = load_audio(embedded_clip())
    with nemostream.load().stream() as session:
        for begin in range(0, len(samples), _PACKET):
            for event in session.feed(samples[begin : begin + _PACKET]):
                if event.text.strip():
                    return event.text
        return " ".join(event.text for event in session.finish())


def chunk(bundle: Path) -> int:
    """Load as a user would, files hashed, and run the first chunk; returns its tokens."""
    engine = Engine(OnnxRuntime(bundle))
    stream = engine.open(0, (56, 3))
    generator = np.random.default_rng(0)
    while not stream.framer.ready():
        stream.feed(generator.standard_normal(_CHUNK, dtype=np.float32) * np.float32(0.1))
    return len(engine.step([stream])[0])


if __name__ == "__main__":
    if sys.argv[1] == "soak":
        print(json.dumps(soak(Path(sys.argv[2]), int(sys.argv[3]))))
    elif sys.argv[1] == "word":
        print(word())
    else:
        print(chunk(Path(sys.argv[2])))
