"""Which rows and frames of a call are real, and which keys each frame may see: numpy, on the host.

All of it follows from a few whole numbers a stream, so the device gets finished masks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemostream.config import SUBSAMPLING_FACTOR
from nemostream.framing import PHANTOM_MEL_FRAMES
from nemostream.runtimes.protocol import Int64

Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class CallMasks:
    """What is real in a call of B streams, M mel rows and N = M / 8 frames over P cached frames.

    Attributes:
        stem: [B, M], [B, M / 2], [B, M / 4], [B, N]: real rows of the mel frames, and of what each strided
            convolution makes of them.
        visible: [B, 1, N, P + N], which keys each frame attends to.
        lengths: [B] real frames.
    """

    stem: tuple[Bool, ...]
    visible: Bool
    lengths: Int64

    @classmethod
    def of(cls, mel_lengths: Int64, seen: Int64, att_context: Int64, mel_rows: int, past: int) -> CallMasks:
        """Masks of a call.

        Args:
            mel_lengths: [B], rows up to the last real one.
            seen: [B], encoder frames so far; 0 marks a stream that begins, with its 7 rows of padding.
            att_context: [B, 2], left and right context.
            mel_rows: M.
            past: P.
        """
        stem = stem_masks(np.where(seen == 0, PHANTOM_MEL_FRAMES, 0), mel_lengths, mel_rows)
        lengths = -(-mel_lengths // SUBSAMPLING_FACTOR)
        frames = mel_rows // SUBSAMPLING_FACTOR
        return cls(stem, chunk_mask(frames, past, att_context, np.minimum(seen, past), lengths), lengths)


def stem_masks(start: Int64, lengths: Int64, rows: int) -> tuple[Bool, ...]:
    """Real rows before and after each of the stem's three convolutions, see `nemostream.model.subsampling`.

    ``start`` [B] is the first real row and ``lengths`` [B] the end of the real ones.
    """
    masks = []
    for _ in range(4):
        time = np.arange(rows)
        masks.append((time >= start[:, None]) & (time < lengths[:, None]))
        start, lengths, rows = start // 2, (lengths + 1) // 2, rows // 2
    return tuple(masks)


def chunk_mask(frames: int, past: int, att_context: Int64, past_lengths: Int64, lengths: Int64) -> Bool:
    """Which keys a query may see, [B, 1, frames, past + frames]: see `model.attention.chunk_mask`."""
    query, key = np.arange(frames), np.arange(-past, frames)
    chunk = att_context[:, 1:] + 1
    behind = (query // chunk)[:, :, None] - (key // chunk)[:, None, :]  # numpy's // rounds down
    visible = (behind >= 0) & (behind <= (att_context[:, :1] // chunk)[:, :, None])
    real = (key >= -past_lengths[:, None]) & (key < lengths[:, None])
    masked: Bool = visible & real[:, None, :]
    return masked[:, None]
