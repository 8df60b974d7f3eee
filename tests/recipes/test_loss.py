"""The recipe's RNN-T loss against a sum over every alignment."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import REPOSITORY

_spec = importlib.util.spec_from_file_location("tiny_loss", REPOSITORY / "recipes" / "tiny" / "loss.py")
assert _spec is not None
assert _spec.loader is not None
tiny_loss = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_loss)


def alignments(
    log_probabilities: torch.Tensor, labels: list[int], blank: int, frame: int = 0, done: int = 0
) -> Iterator[torch.Tensor]:
    """Log probability of every path that emits the labels within the frames."""
    here = log_probabilities[frame, done]
    if done < len(labels):
        for rest in alignments(log_probabilities, labels, blank, frame, done + 1):
            yield here[labels[done]] + rest
    if frame + 1 < len(log_probabilities):
        for rest in alignments(log_probabilities, labels, blank, frame + 1, done):
            yield here[blank] + rest
    elif done == len(labels):
        yield here[blank]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4), st.integers(0, 10**6)
)
def test_loss_and_gradient_equal_the_sum_over_alignments(sizes: list[tuple[int, int]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    frames, counts = torch.tensor(sizes).T
    blank = 6
    shape = (len(sizes), int(frames.max()), int(counts.max()) + 1, blank + 1)
    logits = (3 * torch.randn(shape, generator=generator)).requires_grad_()
    labels = torch.randint(0, blank, (shape[0], shape[2] - 1), generator=generator)
    ours = tiny_loss.rnnt_loss(logits, labels, frames, counts, blank)
    expected = []
    for row, (time, count) in enumerate(sizes):
        paths = alignments(torch.log_softmax(logits[row, :time], 2), labels[row, :count].tolist(), blank)
        expected.append(-torch.logsumexp(torch.stack(list(paths)), 0))
    assert torch.allclose(ours, torch.stack(expected), atol=1e-4)
    (gradient,) = torch.autograd.grad(ours.sum(), logits, retain_graph=True)
    (expected_gradient,) = torch.autograd.grad(torch.stack(expected).sum(), logits)
    assert (gradient - expected_gradient).abs().max() < 1e-4
