"""Audio to verify with: what the user names, else the clip inside the package, else made-up sound."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from nemostream.audio import load_audio
from nemostream.config import SAMPLE_RATE
from nemostream.runtimes.protocol import Float32

_SYNTHETIC_SECONDS = 6.0


def clips_for(audio: Sequence[str], most_seconds: float) -> dict[str, Float32]:
    """Return name -> 16 kHz mono samples, each cut to ``most_seconds``.

    Raises:
        AudioError: if a file cannot be read.
    """
    most = round(most_seconds * SAMPLE_RATE)
    if audio:
        return {name: load_audio(name)[:most] for name in audio}
    found = {"synthetic": synthetic_sound()[:most]}
    bundled = Path(str(files("nemostream") / "assets" / "clip.flac"))
    if bundled.is_file():
        found["clip.flac"] = load_audio(bundled)[:most]
    return found


def synthetic_sound(seconds: float = _SYNTHETIC_SECONDS) -> Float32:
    """Sweeping tones and bursts of noise between silences: every part of a model gets something to do."""
    generator = np.random.default_rng(8)
    count = round(seconds * SAMPLE_RATE)
    time = np.arange(count) / SAMPLE_RATE
    voice = np.sin(2 * np.pi * (220 + 120 * np.sin(2 * np.pi * 1.7 * time)) * time)
    loudness = np.repeat(generator.random(count // 1600 + 1) ** 2, 1600)[:count]
    loudness[round(0.4 * count) : round(0.5 * count)] = 0.0
    noise = 0.3 * generator.standard_normal(count)
    return ((voice + noise) * loudness * 0.3).astype(np.float32)
