"""The history of many streams against the obvious way to keep one."""

from __future__ import annotations

import numpy as np
import pytest

from nemostream.runtimes.history import History

SERIES, WIDTH = 3, 2


@pytest.mark.parametrize(("room", "slack"), [(5, 4), (4, 4), (8, 14), (56, 14), (1, 3), (7, 1)])
def test_windows_are_the_last_frames_however_they_came(room: int, slack: int) -> None:
    rng = np.random.default_rng(room)
    history = History(SERIES, room, WIDTH, slack)
    history.resize(2)
    expected = [np.zeros((SERIES, room, WIDTH), np.float32) for _ in range(2)]
    for _ in range(300):
        slot, frames = int(rng.integers(2)), int(rng.integers(1, 2 * (room + slack)))
        new = rng.standard_normal((SERIES, frames, WIDTH), dtype=np.float32)
        if frames <= slack and rng.random() < 0.7:
            place = history.reserve(slot, frames)
            assert np.array_equal(history.window(slot), expected[slot])  # reserving changes nothing
            place[...] = new
            history.advance(slot, frames)
        else:
            history.append(slot, new)
        expected[slot] = np.concatenate([expected[slot], new], axis=1)[:, -room:]
        assert np.array_equal(history.window(slot), expected[slot])


def test_new_frames_are_written_where_they_stay_and_each_series_is_contiguous() -> None:
    history = History(SERIES, 5, WIDTH, 4)
    history.resize(1)
    place = history.reserve(0, 4)
    history.advance(0, 4)
    assert np.shares_memory(place, history.window(0))
    assert all(series.flags.c_contiguous for series in history.window(0))


def test_growing_moves_nothing_and_reset_clears() -> None:
    history = History(SERIES, 5, WIDTH, 4)
    history.resize(1)
    history.append(0, np.ones((SERIES, 3, WIDTH), np.float32))
    before = history.window(0)
    history.resize(4)
    assert np.shares_memory(before, history.window(0))
    assert history.window(0).sum() == SERIES * 3 * WIDTH
    history.reset(0)
    assert not history.window(0).any()


def test_batches_of_changing_size_equal_single_slots() -> None:
    rng = np.random.default_rng(0)
    batched, single = History(SERIES, 5, WIDTH, 4), History(SERIES, 5, WIDTH, 4)
    batched.resize(4)
    single.resize(4)
    for _ in range(100):
        slots = [int(slot) for slot in rng.permutation(4)[: rng.integers(1, 5)]]
        new = rng.standard_normal((SERIES, len(slots), rng.integers(1, 9), WIDTH), dtype=np.float32)
        places = batched.places(slots, new.shape[2])
        places[...] = new
        expected = np.stack([single.window(slot) for slot in slots], axis=1)
        windows = batched.windows(slots)
        assert np.array_equal(windows, expected)
        assert not np.shares_memory(windows, places) or len(slots) == 1
        assert all(series.flags.c_contiguous for series in (*windows, *places))
        batched.keep(slots, places)
        for row, slot in enumerate(slots):
            single.append(slot, new[:, row])
