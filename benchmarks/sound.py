"""What is listened to: noise, the same every time."""

from __future__ import annotations

import numpy as np

from nemostream.config import SAMPLE_RATE
from nemostream.runtimes.protocol import Float32

_SEED = 0


def sound(seconds: float) -> Float32:
    """Noise [N] at 16 kHz whose loudness changes ten times a second."""
    generator = np.random.default_rng(_SEED)
    loudness = np.repeat(generator.random(int(seconds * 10) + 1), SAMPLE_RATE // 10).astype(np.float32)
    noise = generator.standard_normal(int(seconds * SAMPLE_RATE), dtype=np.float32)
    return noise * loudness[: noise.size] * np.float32(0.2)


def packets(samples: Float32, milliseconds: int) -> list[Float32]:
    """Whole packets of one chunk each."""
    size = SAMPLE_RATE * milliseconds // 1000
    return [samples[start : start + size] for start in range(0, len(samples) - size + 1, size)]
