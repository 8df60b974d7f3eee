"""Recordings as a telephone network delivers them: 8 kHz mu-law in packets of 20 ms."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from nemostream.audio import load_audio
from nemostream.errors import AudioError

RATE = 8000
PACKET_SECONDS = 0.02
PACKET_BYTES = 160
SILENCE = b"\xff" * PACKET_BYTES  # mu-law zero


@dataclass(frozen=True, slots=True)
class Utterance:
    """One recording: ``packets`` of `PACKET_BYTES`, the last filled up with silence."""

    name: str
    packets: tuple[bytes, ...]

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.packets) * PACKET_SECONDS


def read_utterances(paths: Sequence[Path]) -> list[Utterance]:
    """Read recordings of any format, mixed to mono.

    Raises:
        AudioError: if one can't be read.
    """
    return [Utterance(path.name, tuple(_packets(path))) for path in paths]


def _packets(path: Path) -> Iterator[bytes]:
    samples = np.clip(load_audio(path, target_rate=RATE), -1, 1)
    if len(samples) == 0:
        raise AudioError(f"{path} has no samples; give a recording of speech.")
    raw = io.BytesIO()
    soundfile.write(raw, samples, RATE, format="RAW", subtype="ULAW")
    codes = raw.getvalue()
    for start in range(0, len(codes), PACKET_BYTES):
        yield codes[start : start + PACKET_BYTES].ljust(PACKET_BYTES, SILENCE[:1])
