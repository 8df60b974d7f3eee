"""`History`: the last frames of many streams, in rings, so that keeping them costs no more than writing them.

    frame  48 49 50 51 | 44 45 46 47        a ring with room for 8 frames, of which 52 have been kept

A new frame takes the place of the oldest one. Readers are told in which rows the frames lie, oldest first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nemostream.runtimes.protocol import Int64


class History:
    """The last ``room`` frames of ``series`` time series in every slot.

    Args:
        series: number of series, such as the keys of every layer.
        parts: pieces that a frame is kept in, such as attention heads; a series keeps those of one head
            together.
        room: frames that are kept, at least 1.
        width: numbers in a piece.
        dtype: of the numbers.
    """

    def __init__(self, series: int, parts: int, room: int, width: int, dtype: DTypeLike) -> None:
        self.room = room
        self.memory: NDArray[Any] = np.zeros((series, 0, parts, room, width), dtype)
        self._new: dict[int, NDArray[Any]] = {}

    def resize(self, slots: int) -> None:
        """Grow to ``slots`` slots; memory moves."""
        series, old, *frame = self.memory.shape
        grown = np.zeros((series, slots, *frame), self.memory.dtype)  # pages that nobody writes cost nothing
        grown[:, :old] = self.memory
        self.memory = grown

    def reset(self, slot: int) -> None:
        """Set a slot to zeros."""
        self.memory[:, slot] = 0

    def tables(self) -> list[NDArray[Any]]:
        """The memory of each series as rows, [slots * parts * room, width]."""
        return [series.reshape(-1, series.shape[-1]) for series in self.memory]

    def rows(self, slots: list[int], seen: Int64) -> Int64:
        """Rows of the slots in `tables`, oldest frame first: [B, parts, room].

        Args:
            slots: B slots.
            seen: [B], frames that each has kept so far.
        """
        parts = self.memory.shape[2]
        places = (seen[:, None] + np.arange(self.room)) % self.room
        blocks = np.asarray(slots)[:, None] * parts + np.arange(parts)
        rows: Int64 = blocks[:, :, None] * self.room + places[:, None, :]
        return rows

    def places(self, batch: int, frames: int, worker: int = 0) -> NDArray[Any]:
        """Memory [series, B, parts, frames, width] for new frames, good until the worker's next call.

        It is used again and again, since fresh pages cost more than what is written into them.
        """
        series, _, parts, _, width = self.memory.shape
        size = series * batch * parts * frames * width
        if worker not in self._new or size > self._new[worker].size:
            self._new[worker] = np.empty(size, self.memory.dtype)
        return self._new[worker][:size].reshape(series, batch, parts, frames, width)

    def keep(self, slots: list[int], seen: Int64, new: NDArray[Any]) -> None:
        """Append new frames [series, B, parts, frames, width]; ``seen`` is that of before."""
        frames = new.shape[3]
        kept = min(frames, self.room)
        for row, slot in enumerate(slots):
            begin = (int(seen[row]) + frames - kept) % self.room
            first = min(kept, self.room - begin)  # up to the ring's end; the rest goes to its start
            at = frames - kept
            self.memory[:, slot, :, begin : begin + first] = new[:, row, :, at : at + first]
            self.memory[:, slot, :, : kept - first] = new[:, row, :, at + first :]
