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


def add(encoded: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
    """A joint for tests, with as many hidden units as labels, so that any logits can be had."""
    return torch.sinh(encoded + predicted)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4), st.integers(0, 10**6)
)
def test_loss_and_gradient_equal_the_sum_over_alignments(sizes: list[tuple[int, int]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    frames, counts = torch.tensor(sizes).T
    blank = 6
    rows, time, width = len(sizes), int(frames.max()), int(counts.max()) + 1
    encoded = torch.randn(rows, time, blank + 1, generator=generator).requires_grad_()
    predicted = torch.randn(rows, width, blank + 1, generator=generator).requires_grad_()
    labels = torch.randint(0, blank, (rows, width - 1), generator=generator)
    ours = tiny_loss.rnnt_loss(add, encoded, predicted, labels, frames, counts, blank, least_posterior=0)
    log_probabilities = torch.log_softmax(add(encoded[:, :, None], predicted[:, None]), 3)
    expected = []
    for row, (frame_count, count) in enumerate(sizes):
        paths = alignments(log_probabilities[row, :frame_count], labels[row, :count].tolist(), blank)
        expected.append(-torch.logsumexp(torch.stack(list(paths)), 0))
    assert torch.allclose(ours, torch.stack(expected), atol=1e-4)
    weights = torch.rand(rows, generator=generator)
    gradients = torch.autograd.grad((ours * weights).sum(), (encoded, predicted), retain_graph=True)
    wanted = torch.autograd.grad((torch.stack(expected) * weights).sum(), (encoded, predicted))
    for gradient, other in zip(gradients, wanted, strict=True):
        assert (gradient - other).abs().max() < 1e-4 * max(1.0, float(other.abs().max()))


def test_unlikely_nodes_get_no_gradient_and_the_others_theirs() -> None:
    generator = torch.Generator().manual_seed(5)
    frames, counts, blank = torch.tensor([12, 9]), torch.tensor([6, 4]), 30
    labels = torch.randint(0, blank, (2, 6), generator=generator)
    encoded = torch.randn(2, 12, blank + 1, generator=generator)
    encoded[:, :, blank] += 2  # paths that are sure
    predicted = torch.randn(2, 7, blank + 1, generator=generator)
    counted = []

    def joint(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            counted.append(len(one))
        return add(one, other)

    gradients = []
    for least in (0.0, 1e-4):
        leaf = encoded.clone().requires_grad_()
        loss = tiny_loss.rnnt_loss(joint, leaf, predicted, labels, frames, counts, blank, least)
        gradients.append(torch.autograd.grad(loss.sum(), leaf)[0])
    assert counted[1] < counted[0] / 2
    # what is left out has a posterior below 1e-4 at each of 84 nodes, times the joint's slope
    assert (gradients[0] - gradients[1]).norm() < 1e-2 * gradients[0].norm()
