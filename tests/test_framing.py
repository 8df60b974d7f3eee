"""Framing covers every frame once, in order, whatever the packets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemostream.framing import PHANTOM_MEL_FRAMES, UNIFORM_HISTORY, NativeFramer, UniformFramer


def numbered(frames: int) -> np.ndarray:
    return np.repeat(np.arange(1, frames + 1, dtype=np.float32)[:, None], 4, axis=1)


@given(st.integers(0, 300), st.integers(1, 14), st.integers(1, 4), st.integers(1, 50))
def test_native_chunks(frames: int, size: int, chunks: int, packet: int) -> None:
    framer, mel, calls = NativeFramer(size, 4), numbered(frames), []
    for start in range(0, frames, packet):
        framer.push(mel[start : start + packet])
        while framer.ready() >= chunks:
            calls.append(framer.take(chunks))
    framer.finish()
    while framer.ready():
        calls.append(framer.take(min(chunks, framer.ready())))
    heard = np.concatenate([call.mel[: call.length] for call in calls]) if calls else np.zeros((0, 4))
    expected = np.concatenate([np.zeros((PHANTOM_MEL_FRAMES, 4)), mel]) if frames else heard
    assert np.array_equal(heard, expected)
    assert all(len(call.mel) % (8 * size) == 0 for call in calls)
    assert all(call.length == len(call.mel) for call in calls[:-1])  # only the last may be short


@given(st.integers(1, 300), st.integers(1, 14))
def test_uniform_windows(frames: int, size: int) -> None:
    framer = UniformFramer(size, 4)
    framer.push(numbered(frames))
    framer.finish()
    history, start = np.zeros((UNIFORM_HISTORY, 4)), 0
    while framer.ready():
        call = framer.take(1)
        assert call.mel.shape == (UNIFORM_HISTORY + 8 * size, 4)
        assert np.array_equal(call.mel[:UNIFORM_HISTORY], history)
        new = call.mel[UNIFORM_HISTORY : call.length]
        assert np.array_equal(new, numbered(frames)[start : start + 8 * size])
        start += 8 * size
        history = call.mel[-UNIFORM_HISTORY:]
    assert start >= frames


def test_taking_too_much_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 are ready"):
        NativeFramer(4, 4).take(1)
