"""Loudness of a stream, one number for every encoder frame."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nemostream.config import FRAME_MS, SAMPLE_RATE

FRAME_SAMPLES = SAMPLE_RATE * FRAME_MS // 1000
SILENCE_DB = -120.0  # what digital silence is said to have


class LevelMeter:
    """Turns 16 kHz samples into the level of every 80 ms, in dB of full scale, as they come."""

    def __init__(self) -> None:
        self._pending = np.zeros(0, np.float32)

    def feed(self, samples: NDArray[np.float32]) -> list[float]:
        """Take samples [N] and return the levels of the frames that are now complete."""
        self._pending = np.concatenate([self._pending, samples])
        whole = len(self._pending) // FRAME_SAMPLES * FRAME_SAMPLES
        frames = self._pending[:whole].reshape(-1, FRAME_SAMPLES).astype(np.float64)
        self._pending = self._pending[whole:].copy()
        power = np.square(frames).mean(axis=1)
        levels: list[float] = (10 * np.log10(np.maximum(power, 10 ** (SILENCE_DB / 10)))).tolist()
        return levels
