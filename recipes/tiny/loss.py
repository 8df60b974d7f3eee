"""RNN-T loss in plain PyTorch, vectorised over batch and labels; gradients only where paths run.

Graves, "Sequence Transduction with Recurrent Neural Networks" (2012): the probability of the labels is the
sum over all paths through a [T, U + 1] lattice that moves right on a blank and up on a label. Along u, the
recursion is a cumulative logsumexp, so only time needs a loop. The gradient with respect to the log
probability of an edge is minus the posterior probability of passing it, so the loss has the gradient of the
log probabilities weighted by their posteriors. A trained model is sure of its path: of the nodes one in
twenty or fewer has a posterior that matters, and only there the joint is computed with its gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_IMPOSSIBLE = -1e30


def rnnt_loss(
    joint: Callable[[Tensor, Tensor], Tensor],
    encoded: Tensor,
    predicted: Tensor,
    labels: Tensor,
    frames: Tensor,
    label_lengths: Tensor,
    blank: int,
    least_posterior: float = 1e-4,
) -> Tensor:
    """Negative log likelihood of each utterance.

    Args:
        joint: ``encoded`` [..., J] and ``predicted`` [..., J], broadcast together -> logits [..., V + 1].
        encoded: [B, T, J].
        predicted: [B, U + 1, J].
        labels: [B, U] int64; entries past a row's length are ignored.
        frames: [B] int64, valid frames, at least 1.
        label_lengths: [B] int64.
        blank: id of the blank.
        least_posterior: nodes that paths pass with a smaller probability get no gradient.

    Returns:
        [B] float32.
    """
    batch, time = encoded.shape[:2]
    blanks = encoded.new_zeros(batch, time, predicted.shape[1], dtype=torch.float32)
    # labels past the end can't be emitted; frames past the end are never reached from the final node
    emissions = encoded.new_full((batch, time, labels.shape[1]), _IMPOSSIBLE / 1e10, dtype=torch.float32)
    with torch.no_grad():
        # utterance by utterance, since one's logits fit a processor's cache and need no padding
        for number, (end, count) in enumerate(zip(frames.tolist(), label_lengths.tolist(), strict=True)):
            logits = joint(encoded[number, :end, None], predicted[number, None, : count + 1]).float()
            blanks[number, :end, : count + 1], emissions[number, :end, :count] = _log_probabilities(
                logits, labels[number, :count], blank
            )
        likelihood, blank_posterior, label_posterior = _posteriors(blanks, emissions, frames, label_lengths)
        label_posterior = torch.nn.functional.pad(label_posterior, (0, 1))  # none follows the last
        likely = blank_posterior + label_posterior > least_posterior
        row, frame, label = likely.nonzero(as_tuple=True)
        following = torch.nn.functional.pad(labels, (0, 1))[row, label]
    # flat, since the backward pass of index_select is the fast one
    logits = joint(
        encoded.flatten(0, 1).index_select(0, row * time + frame),
        predicted.flatten(0, 1).index_select(0, row * predicted.shape[1] + label),
    )
    # in fp32: rounded to bf16, a blank of probability 0.98 would have a gradient of pure rounding error
    logs = torch.log_softmax(logits.float(), 1)
    passed = blank_posterior[row, frame, label] * logs[:, blank]
    emitted = logs.gather(1, following[:, None]).squeeze(1)
    passed = passed + label_posterior[row, frame, label] * emitted
    slope = torch.zeros_like(likelihood).index_add(0, row, passed)
    return -(likelihood + slope - slope.detach())


def _log_probabilities(logits: Tensor, labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """Log probabilities of the blank [T, U + 1] and the next label [T, U], of logits [T, U + 1, V + 1]."""
    normaliser = torch.logsumexp(logits, 2)
    following = labels[None, :, None].expand(len(logits), -1, 1)
    emissions = logits[:, :-1].gather(2, following).squeeze(2) - normaliser[:, :-1]
    return logits[..., blank] - normaliser, emissions


def _posteriors(
    blanks: Tensor, emissions: Tensor, frames: Tensor, label_lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Log likelihood [B]; the probability that a path takes a blank [B, T, U + 1] or a label [B, T, U]."""
    batch, time, width = blanks.shape
    rows = torch.arange(batch, device=blanks.device)
    climb = torch.nn.functional.pad(emissions.cumsum(2), (1, 0))  # sum of the labels below u

    forward = torch.empty_like(blanks)
    forward[:, 0] = climb[:, 0]
    for t in range(1, time):
        arrive = forward[:, t - 1] + blanks[:, t - 1]
        forward[:, t] = torch.logcumsumexp(arrive - climb[:, t], dim=1) + climb[:, t]
    last = frames - 1
    final_blank = blanks[rows, last, label_lengths]
    log_likelihood = forward[rows, last, label_lengths] + final_blank

    at_end = torch.arange(width, device=blanks.device) == label_lengths[:, None]
    backward = torch.full_like(blanks, _IMPOSSIBLE)
    for t in range(time - 1, -1, -1):
        leave = torch.full_like(blanks[:, 0], _IMPOSSIBLE)
        if t + 1 < time:
            leave = backward[:, t + 1] + blanks[:, t]
        ends = (last == t)[:, None] & at_end
        leave = torch.where(ends, final_blank[:, None], leave)
        leave = torch.where((t > last)[:, None], _IMPOSSIBLE, leave)
        total = torch.logcumsumexp((leave + climb[:, t]).flip(1), dim=1).flip(1) - climb[:, t]
        backward[:, t] = total.clamp(min=_IMPOSSIBLE)

    after = torch.full_like(blanks, _IMPOSSIBLE)
    after[:, :-1] = backward[:, 1:]
    after[rows, last] = _IMPOSSIBLE
    after[rows, last, label_lengths] = 0.0
    reach = forward - log_likelihood[:, None, None]
    valid = (torch.arange(time, device=blanks.device) < frames[:, None])[:, :, None]
    blank_posterior = torch.exp((reach + blanks + after).clamp(max=0.0)) * valid
    label_posterior = torch.exp((reach[:, :, :-1] + emissions + backward[:, :, 1:]).clamp(max=0.0)) * valid
    return log_likelihood, blank_posterior, label_posterior
