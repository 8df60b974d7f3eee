"""The history of many streams against the obvious way to keep one."""

from __future__ import annotations

import numpy as np
import pytest

from nemostream.runtimes.history import History

SERIES, PARTS, WIDTH = 3, 2, 4


def read(history: History, slots: list[int], seen: np.ndarray) -> np.ndarray:
    """[series, B, parts, room, width], by the rows that a graph is told."""
    rows = history.rows(slots, seen)
    return np.stack([table[rows] for table in history.tables()])


@pytest.mark.parametrize("room", [1, 4, 5, 8, 56])
def test_rows_are_the_last_frames_however_they_came(room: int) -> None:
    rng = np.random.default_rng(room)
    history = History(SERIES, PARTS, room, WIDTH, np.float32)
    history.resize(4)
    expected = np.zeros((SERIES, 4, PARTS, room, WIDTH), np.float32)
    seen = np.zeros(4, np.int64)
    for _ in range(200):
        slots = [int(slot) for slot in rng.permutation(4)[: rng.integers(1, 5)]]
        frames = int(rng.integers(1, 2 * room + 3))
        new = history.places(len(slots), frames)
        new[...] = rng.standard_normal(new.shape, dtype=np.float32)
        history.keep(slots, seen[slots], new)
        seen[slots] += frames
        expected[:, slots] = np.concatenate([expected[:, slots], new], axis=3)[:, :, :, -room:]
        assert np.array_equal(read(history, slots, seen[slots]), expected[:, slots])
    assert np.array_equal(read(history, [0, 1, 2, 3], seen), expected)


def test_growing_keeps_and_reset_clears_one_slot() -> None:
    history = History(SERIES, PARTS, 5, WIDTH, np.float16)
    history.resize(2)
    zero = np.zeros(2, np.int64)
    new = history.places(2, 5)
    new[...] = 1
    history.keep([0, 1], zero, new)
    history.resize(7)
    history.reset(0)
    assert not read(history, [0], zero[:1]).any()
    assert read(history, [1], zero[:1]).all()
    assert history.memory.dtype == np.float16


def test_memory_for_new_frames_is_used_again() -> None:
    history = History(SERIES, PARTS, 5, WIDTH, np.float32)
    assert np.shares_memory(history.places(3, 4), history.places(1, 2))
