"""`History`: the last frames of many streams, laid out so that keeping them costs next to no copying.

A slot is one block of memory with some room behind its window. New frames are written behind the window,
which then slides over them; only when the room is used up does the window move back to the block's start.

    [ . . . o o o o o o o o n n n n . . ]      o window (``room`` frames)   n new frames   . free
"""

from __future__ import annotations

import math

import numpy as np

from nemostream.runtimes.protocol import Float32


class History:
    """The last ``room`` frames of ``series`` time series in every slot, float32.

    Args:
        series: number of series, such as keys and values of every layer.
        room: frames that are kept.
        width: numbers a frame.
        slack: frames of free space behind a window; as many can be written in place.
    """

    def __init__(self, series: int, room: int, width: int, slack: int) -> None:
        self.room, self.slack = room, slack
        self._shape = (series, room + slack, width)
        self._blocks: list[Float32] = []  # one a slot, so that growing moves nothing
        self._ends: list[int] = []  # where each window ends
        self._gathered, self._new = _Scratch(), _Scratch()

    def resize(self, slots: int) -> None:
        """Grow to ``slots`` slots."""
        while len(self._blocks) < slots:
            self._blocks.append(np.zeros(self._shape, np.float32))
            self._ends.append(self.room)

    def reset(self, slot: int) -> None:
        """Set the window of a slot to zeros."""
        self._blocks[slot].fill(0)
        self._ends[slot] = self.room

    def window(self, slot: int) -> Float32:
        """The last frames: a view [series, room, width], each series contiguous."""
        end = self._ends[slot]
        return self._blocks[slot][:, end - self.room : end]

    def reserve(self, slot: int, frames: int) -> Float32:
        """Place for at most ``slack`` new frames: a view [series, frames, width]; `advance` makes them count.

        It may move the window, so call it before `window`.
        """
        block, end = self._blocks[slot], self._ends[slot]
        if end + frames > block.shape[1]:
            block[:, : self.room] = block[:, end - self.room : end]  # numpy copes with the overlap
            end = self._ends[slot] = self.room
        return block[:, end : end + frames]

    def advance(self, slot: int, frames: int) -> None:
        """Slide the window over ``frames`` frames that were written into what `reserve` gave."""
        self._ends[slot] += frames

    def windows(self, slots: list[int]) -> Float32:
        """Windows of several slots, [series, B, room, width]: a view of one slot, a copy of more.

        The copy is good until the next call. Call `places` first, since it may move a window.
        """
        if len(slots) == 1:
            return self.window(slots[0])[:, None]
        series, _, width = self._shape
        gathered = self._gathered.array((series, len(slots), self.room, width))
        for row, slot in enumerate(slots):
            gathered[:, row] = self.window(slot)
        return gathered

    def places(self, slots: list[int], frames: int) -> Float32:
        """Memory [series, B, frames, width] for new frames, which `keep` then makes part of the history.

        That of one slot is inside the history, if the frames fit; other memory is good until the next call.
        """
        if len(slots) == 1 and frames <= self.slack:
            return self.reserve(slots[0], frames)[:, None]
        series, _, width = self._shape
        return self._new.array((series, len(slots), frames, width))

    def keep(self, slots: list[int], new: Float32) -> None:
        """Append new frames that were written into what `places` gave for the same slots."""
        if len(slots) == 1 and new.shape[2] <= self.slack:
            self.advance(slots[0], new.shape[2])
            return
        for row, slot in enumerate(slots):
            self.append(slot, new[:, row])

    def append(self, slot: int, new: Float32) -> None:
        """Copy new frames [series, frames, width] of any number in; only the last ``room`` can matter."""
        if new.shape[1] >= self.room:
            self._blocks[slot][:, : self.room] = new[:, new.shape[1] - self.room :]
            self._ends[slot] = self.room
            return
        for start in range(0, new.shape[1], self.slack):
            part = new[:, start : start + self.slack]
            self.reserve(slot, part.shape[1])[...] = part
            self.advance(slot, part.shape[1])


class _Scratch:
    """Memory that is used again, since fresh pages cost more than the copying into them."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def array(self, shape: tuple[int, ...]) -> Float32:
        """Contiguous array with arbitrary content."""
        size = math.prod(shape)
        if size > self._memory.size:
            self._memory = np.empty(size, np.float32)
        return self._memory[:size].reshape(shape)
