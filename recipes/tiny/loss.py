"""RNN-T loss in plain PyTorch: a loop over time, vectorised over batch and labels, with its own gradient.

Graves, "Sequence Transduction with Recurrent Neural Networks" (2012): the probability of the labels is the
sum over all paths through a [T, U + 1] lattice that moves right on a blank and up on a label. Along u, the
recursion is a cumulative logsumexp, so only time needs a loop. The gradient with respect to the log
probabilities of an edge is minus the posterior probability of passing it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_IMPOSSIBLE = -1e30


def rnnt_loss(logits: Tensor, labels: Tensor, frames: Tensor, label_lengths: Tensor, blank: int) -> Tensor:
    """Negative log likelihood of each utterance.

    Args:
        logits: [B, T, U + 1, V + 1], not normalised.
        labels: [B, U] int64; entries past a row's length are ignored.
        frames: [B] int64, valid frames, at least 1.
        label_lengths: [B] int64.
        blank: id of the blank.

    Returns:
        [B] float32.
    """
    return _LatticeLoss.apply(logits, labels, frames, label_lengths, blank)  # type: ignore[no-any-return, no-untyped-call]


class _LatticeLoss(torch.autograd.Function):
    """The loss with its gradient down to the logits, so that no [B, T, U + 1, V + 1] float32 copy is kept."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, logits: Tensor, labels: Tensor, frames: Tensor, label_lengths: Tensor, blank: int
    ) -> Tensor:
        # in fp32: rounded to bf16, a blank of probability 0.98 would have a gradient of pure rounding error
        normaliser = torch.logsumexp(logits.float(), dim=3)
        blanks = logits[..., blank].float() - normaliser
        index = labels[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
        emissions = logits[:, :, :-1].gather(3, index).squeeze(3).float() - normaliser[:, :, :-1]
        batch, time, width = blanks.shape
        rows = torch.arange(batch, device=logits.device)
        # labels past the end can't be emitted; frames past the end are never reached from the final node
        past_end = torch.arange(width - 1, device=logits.device) >= label_lengths[:, None]
        emissions = emissions.masked_fill(past_end[:, None], _IMPOSSIBLE / 1e10)
        climb = torch.nn.functional.pad(emissions.cumsum(2), (1, 0))  # sum of the labels below u

        forward = torch.empty_like(blanks)
        forward[:, 0] = climb[:, 0]
        for t in range(1, time):
            arrive = forward[:, t - 1] + blanks[:, t - 1]
            forward[:, t] = torch.logcumsumexp(arrive - climb[:, t], dim=1) + climb[:, t]
        last = frames - 1
        final_blank = blanks[rows, last, label_lengths]
        log_likelihood = forward[rows, last, label_lengths] + final_blank

        at_end = torch.arange(width, device=logits.device) == label_lengths[:, None]
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
        ctx.save_for_backward(
            logits,
            index,
            normaliser,
            forward,
            backward,
            blanks,
            emissions,
            frames,
            label_lengths,
            log_likelihood,
        )
        ctx.blank = blank
        return -log_likelihood

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[no-untyped-def]
        logits, index, normaliser, forward, backward, *rest = ctx.saved_tensors
        blanks, emissions, frames, label_lengths, log_likelihood = rest
        batch, time, _ = blanks.shape
        rows, last = torch.arange(batch, device=logits.device), frames - 1
        after = torch.full_like(blanks, _IMPOSSIBLE)
        after[:, :-1] = backward[:, 1:]
        after[rows, last] = _IMPOSSIBLE
        after[rows, last, label_lengths] = 0.0
        reach = forward - log_likelihood[:, None, None]
        valid = (torch.arange(time, device=logits.device) < frames[:, None])[:, :, None]
        blank_posterior = torch.exp((reach + blanks + after).clamp(max=0.0)) * valid
        label_posterior = (
            torch.exp((reach[:, :, :-1] + emissions + backward[:, :, 1:]).clamp(max=0.0)) * valid
        )
        blank_posterior = blank_posterior * grad[:, None, None]
        label_posterior = label_posterior * grad[:, None, None]
        occupancy = blank_posterior.clone()
        occupancy[:, :, :-1] += label_posterior
        gradient = (logits.float() - normaliser[..., None]).exp_()
        gradient *= occupancy[..., None]
        gradient[..., ctx.blank] -= blank_posterior
        gradient[:, :, :-1].scatter_add_(3, index, -label_posterior[..., None])
        return gradient.to(logits.dtype), None, None, None, None
