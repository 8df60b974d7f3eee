"""How a stream of mel frames is cut into the calls of an encoder.

*Native* framing is exact: streaming equals the offline forward at every length and right context. Seven
mel frames that do not exist are imagined before a stream's first one (see `model.subsampling`); after
that every chunk is 8 (R + 1) rows, of which the first chunk holds 1 + 8 R real ones.

*Uniform* framing is that of NeMo's fixed-shape exports: every chunk of 8 (R + 1) mel frames is glued to
the 9 frames before it (zeros at the start). It samples another phase of the stem, so the two are never mixed;
which one applies is a property of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nemostream.config import SUBSAMPLING_FACTOR

Float32 = NDArray[np.float32]

PHANTOM_MEL_FRAMES = 7  # native: rows before a stream's first mel frame
UNIFORM_HISTORY = 9  # uniform: mel frames repeated before every chunk (NeMo's pre_encode_cache_size)


@dataclass(frozen=True)
class Call:
    """The rows of one stream for one encoder call: mel [M, F], of which the first ``length`` are real."""

    mel: Float32
    length: int


class Framer(Protocol):
    """Cuts one stream into calls.

    Attributes:
        finished: True after `finish`.
    """

    finished: bool

    def push(self, mel: Float32) -> None:
        """Add mel frames [t, F]."""

    def finish(self) -> None:
        """No more frames will come."""

    def ready(self) -> int:
        """Chunks that can be taken now; after `finish`, a short last one counts too."""

    def missing(self) -> int:
        """Mel frames that the next chunk still needs; 0 if one is ready."""

    def take(self, chunks: int) -> Call:
        """Take that many chunks, at most `ready`."""


class NativeFramer:
    """`Framer` for native framing with chunks of ``frames`` (right + 1) encoder frames."""

    def __init__(self, frames: int, num_mel_bins: int) -> None:
        self._rows = SUBSAMPLING_FACTOR * frames
        self._pending = self._lead_in(num_mel_bins)
        self._any = False
        self.finished = False

    def push(self, mel: Float32) -> None:
        """Add mel frames [t, F]."""
        if len(mel):
            self._any = True
            self._pending = np.concatenate([self._pending, mel])

    def finish(self) -> None:
        """No more frames will come."""
        self.finished = True

    def ready(self) -> int:
        """Whole chunks; after `finish`, also the rest. A stream without a single frame has none."""
        if not self._any:
            return 0
        whole, rest = divmod(len(self._pending), self._rows)
        return whole + (1 if self.finished and rest else 0)

    def missing(self) -> int:
        """Mel frames that the next chunk still needs; 0 if one is ready."""
        return 0 if self.ready() else max(1, self._rows - len(self._pending))

    def take(self, chunks: int) -> Call:
        """Take ``chunks`` chunks; the last one of a stream is padded with zeros to its full size.

        Raises:
            ValueError: if there are not that many.
        """
        if not 1 <= chunks <= self.ready():
            raise ValueError(f"{chunks} chunks were asked for, {self.ready()} are ready")
        rows = chunks * self._rows
        mel, self._pending = self._pending[:rows], self._pending[rows:]
        missing = rows - len(mel)
        return Call(np.pad(mel, ((0, missing), (0, 0))) if missing else mel, len(mel))

    @staticmethod
    def _lead_in(num_mel_bins: int) -> Float32:
        return np.zeros((PHANTOM_MEL_FRAMES, num_mel_bins), np.float32)


class UniformFramer(NativeFramer):
    """`Framer` for uniform framing: chunks of ``frames`` encoder frames, each behind 9 rows of history."""

    def __init__(self, frames: int, num_mel_bins: int) -> None:
        super().__init__(frames, num_mel_bins)
        self._history = np.zeros((UNIFORM_HISTORY, num_mel_bins), np.float32)

    def take(self, chunks: int) -> Call:
        """Take ``chunks`` chunks with their history: [9 + rows, F]; the length counts the history too."""
        call = super().take(chunks)
        window = np.concatenate([self._history, call.mel])
        self._history = window[-UNIFORM_HISTORY:]
        return Call(window, UNIFORM_HISTORY + call.length)

    @staticmethod
    def _lead_in(num_mel_bins: int) -> Float32:
        return np.zeros((0, num_mel_bins), np.float32)
