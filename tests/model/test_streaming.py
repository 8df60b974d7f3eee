"""Streaming equals the offline forward: every context, chunk count, batch and length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemostream.model.network import Network
from nemostream.model.subsampling import Subsampling
from tests.models import CONTEXTS, small_config, small_network

TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def network() -> Network:
    return small_network(small_config())


def mel_of(frames: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, frames, 128, generator=torch.Generator().manual_seed(seed + frames))


def stream(
    network: Network, mel: torch.Tensor, lengths: list[int], context: tuple[int, int], chunks: list[int]
) -> list[torch.Tensor]:
    """Encode rows of different lengths side by side; ``chunks`` per call are used in turn."""
    encoder, (left, right) = network.encoder, context
    state = encoder.initial_state(len(lengths), left)
    rows = torch.nn.functional.pad(mel, (0, 0, 7, 8 * (right + 1) * max(chunks)))
    contexts = torch.tensor([context] * len(lengths))
    totals = torch.tensor(lengths) + 7
    outputs: list[list[torch.Tensor]] = [[] for _ in lengths]
    start, call = 0, 0
    while start < int(totals.max()):
        size = 8 * (right + 1) * chunks[call % len(chunks)]
        left_over = (totals - start).clamp(0, size)
        encoded, frames, state = encoder(rows[:, start : start + size], left_over, state, contexts)
        for row, count in enumerate(frames):
            outputs[row].append(encoded[row, :count])
        start, call = start + size, call + 1
    return [torch.cat(parts) for parts in outputs]


def assert_equals_offline(
    network: Network, mel: torch.Tensor, lengths: list[int], context: tuple[int, int], chunks: list[int]
) -> None:
    streamed = stream(network, mel, lengths, context, chunks)
    for row, length in enumerate(lengths):
        offline, frames = network.encoder.encode_utterance(
            mel[row : row + 1, :length], torch.tensor([length]), context
        )
        assert len(streamed[row]) == int(frames) == -(-(length - 1) // 8) + 1
        assert (streamed[row] - offline[0]).abs().max() < TOLERANCE


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("chunks", [[1], [2], [4], [16], [1, 3, 2]])
def test_chunks_per_call(network: Network, context: tuple[int, int], chunks: list[int]) -> None:
    assert_equals_offline(network, mel_of(700), [700], context, chunks)


@pytest.mark.parametrize("context", CONTEXTS)
def test_batch_of_unequal_lengths(network: Network, context: tuple[int, int]) -> None:
    assert_equals_offline(network, mel_of(330, 5), [330, 1, 57, 211, 300], context, [1])


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_length_to_sixty(network: Network, context: tuple[int, int]) -> None:
    lengths = list(range(1, 61))
    assert_equals_offline(network, mel_of(60, 60), lengths, context, [1])


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 400),
    st.sampled_from([*CONTEXTS, (42, 13), (28, 6), (0, 0)]),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_any_length_context_and_call(frames: int, context: tuple[int, int], chunks: list[int]) -> None:
    assert_equals_offline(small_network(small_config()), mel_of(frames), [frames], context, chunks)


def test_rows_with_different_contexts_and_clocks(network: Network) -> None:
    """One call can hold a stream that begins, one that has run for a while, and another latency."""
    encoder = network.encoder
    mel = mel_of(400, 3)
    contexts = torch.tensor([[56, 3], [56, 0], [56, 1]])
    alone = [
        stream(network, mel[row : row + 1], [249], tuple(contexts[row].tolist()), [1])[0] for row in range(3)
    ]
    state = encoder.initial_state(3, 56)
    # let row 0 run ahead by two calls while rows 1 and 2 have not begun
    rows = torch.nn.functional.pad(mel[:, :249], (0, 0, 7, 0))
    ahead = encoder.initial_state(1, 56)
    outputs: list[list[torch.Tensor]] = [[], [], []]
    for start in (0, 32):
        encoded, _, ahead = encoder(rows[:1, start : start + 32], torch.tensor([32]), ahead, contexts[:1])
        outputs[0].append(encoded[0])
    merged = []
    for old, new in zip(state.tensors(), ahead.tensors(), strict=True):
        dimension = 1 if old.ndim in (4,) and old.shape[0] == 2 and old.shape[1] == 3 else 0
        merged.append(old.index_copy(dimension, torch.tensor([0]), new))
    state = type(state).from_tensors(tuple(merged))
    offsets = [64, 0, 0]
    for _ in range(6):
        chunk = torch.stack([rows[row, offset : offset + 32] for row, offset in enumerate(offsets)])
        encoded, _, state = encoder(chunk, torch.tensor([32, 32, 32]), state, contexts)
        for row in range(3):
            outputs[row].append(encoded[row])
            offsets[row] += 32
    for row in range(3):
        ours = torch.cat(outputs[row])
        assert (ours - alone[row][: len(ours)]).abs().max() < TOLERANCE


def test_padding_is_not_heard(network: Network) -> None:
    """What lies after a row's length changes nothing."""
    mel = mel_of(100)
    other = mel.clone()
    other[:, 60:] = 99.0
    context = (56, 3)
    ours, _ = network.encoder.encode_utterance(mel, torch.tensor([60]), context)
    theirs, _ = network.encoder.encode_utterance(other, torch.tensor([60]), context)
    assert torch.equal(ours[:, :9], theirs[:, :9])


def test_stem_state_is_one_frame_per_convolution() -> None:
    config = small_config()
    state = Subsampling(config).initial_state(2, torch.zeros(1), config)
    assert [tuple(tensor.shape) for tensor in state] == [(2, 1, 1, 128), (2, 16, 1, 65), (2, 16, 1, 33)]
