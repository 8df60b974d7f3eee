"""Greedy decoding: every window and batch gives the tokens of the textbook loop."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemostream.decoding import GreedyDecoder, Hypothesis
from nemostream.runtimes.torch import TorchRuntime
from tests.models import small_checkpoint, small_config


@functools.cache
def shared_runtime() -> TorchRuntime:
    runtime = TorchRuntime(small_checkpoint(small_config()))
    runtime.resize(6)
    return runtime


@pytest.fixture
def runtime() -> TorchRuntime:
    return shared_runtime()


def frames_of(count: int, rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, count, 32)).astype(np.float32) * 1.5


def textbook(runtime: TorchRuntime, encoded: np.ndarray) -> list[tuple[int, int]]:
    """One frame and one symbol at a time."""
    blank = runtime.config.blank_id
    runtime.reset(5)
    predicted = runtime.predict([5], np.array([blank]))
    tokens: list[tuple[int, int]] = []
    for frame, vector in enumerate(encoded):
        for _ in range(runtime.config.max_symbols):
            token = int(runtime.joint_logits(vector[None, None], predicted)[0, 0].argmax())
            if token == blank:
                break
            tokens.append((token, frame))
            predicted = runtime.predict([5], np.array([token]))
    return tokens


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.integers(0, 1000), st.sampled_from([1, 2, 8, None]))
def test_any_window_gives_the_textbook_tokens(count: int, seed: int, window: int | None) -> None:
    runtime = shared_runtime()
    runtime.reset(0)
    encoded = frames_of(count, 1, seed)
    (tokens,) = GreedyDecoder(runtime, window).decode([0], [Hypothesis()], encoded, np.array([count]))
    assert tokens == textbook(runtime, encoded[0])


@pytest.mark.parametrize("window", [1, 8, None])
def test_rows_of_a_batch_do_not_see_each_other(runtime: TorchRuntime, window: int | None) -> None:
    encoded = frames_of(30, 5, 3)
    lengths = np.array([30, 0, 7, 30, 21])
    decoder = GreedyDecoder(runtime, window)
    for slot in range(5):
        runtime.reset(slot)
    together = decoder.decode([3, 1, 0, 2, 4], [Hypothesis() for _ in range(5)], encoded, lengths)
    for row, length in enumerate(lengths):
        assert together[row] == textbook(runtime, encoded[row, :length])


def test_state_carries_over_chunks(runtime: TorchRuntime) -> None:
    encoded = frames_of(40, 1, 5)
    hypothesis, tokens = Hypothesis(), []
    runtime.reset(0)
    decoder = GreedyDecoder(runtime)
    for start, stop in ((0, 1), (1, 4), (4, 20), (20, 20), (20, 40)):
        (new,) = decoder.decode([0], [hypothesis], encoded[:, start:stop], np.array([stop - start]))
        tokens += new
    assert tokens == textbook(runtime, encoded[0])
    assert hypothesis.frames == 40


def test_symbols_on_a_frame_are_capped() -> None:
    """A model that never says blank emits ten tokens a frame and then moves on."""
    checkpoint = small_checkpoint(small_config())
    checkpoint.tensors["joint.head.bias"][-1] = -100.0
    runtime = TorchRuntime(checkpoint)
    runtime.resize(6)
    encoded = frames_of(3, 1, 1)
    (tokens,) = GreedyDecoder(runtime).decode([0], [Hypothesis()], encoded, np.array([3]))
    assert [frame for _, frame in tokens] == [0] * 10 + [1] * 10 + [2] * 10
    assert tokens == textbook(runtime, encoded[0])
