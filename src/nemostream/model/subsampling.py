"""Convolutional stem: 8 mel frames become one encoder frame.

Three convolutions of stride 2 over time and frequency; the second and third are depthwise followed by a
pointwise one (NeMo ``dw_striding`` with ``causal_downsampling``). Each looks at two earlier frames and none
after its own, so one previous input frame per convolution is all the state that streaming needs.

Row layout. A stream's encoder frame k is centred on mel frame 8 k. If seven mel frames that do not exist
are imagined before frame 0, every chunk, also the first, is a whole number of 8-frame groups and one rule
serves all: after each convolution, the frames before ``start`` (7, 3, 1, 0 in the first call, 0 later) and
the frames from ``length`` on (halved and rounded up each time) are set to zero, since padding is zero
before a convolution, not what a convolution with bias makes of zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nemostream.config import ModelConfig


class SubsamplingState(NamedTuple):
    """The last input time-frame of each strided convolution, before frequency padding.

    ``mel [B, 1, 1, F]``, ``first [B, C, 1, F/2 + 1]``, ``second [B, C, 1, F/4 + 1]``.
    """

    mel: Tensor
    first: Tensor
    second: Tensor


class DepthwiseSeparable(nn.Module):
    """Depthwise 3x3 convolution of stride 2, then a pointwise one (``encoder.subsampling.layers.N``)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise_conv = nn.Conv2d(channels, channels, 3, stride=2, groups=channels)
        self.pointwise_conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T, F] -> [B, C, T', F']; the caller pads."""
        return self.pointwise_conv(self.depthwise_conv(x))  # type: ignore[no-any-return]


class Subsampling(nn.Module):
    """The stem (checkpoint prefix ``encoder.subsampling``)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        channels = config.subsampling_channels
        self.conv_in = nn.Conv2d(1, channels, 3, stride=2)
        self.layers = nn.ModuleList([DepthwiseSeparable(channels), DepthwiseSeparable(channels)])
        self.linear = nn.Linear(channels * config.subsampled_mel_bins(), config.hidden_size)

    def forward(
        self, mel: Tensor, start: Tensor, lengths: Tensor, state: SubsamplingState
    ) -> tuple[Tensor, Tensor, SubsamplingState]:
        """Run one call.

        Args:
            mel: [B, M, F], M a multiple of 8.
            start: [B] int64, the first real row: 7 in a stream's first call, else 0.
            lengths: [B] int64, rows up to and including the last real one.
            state: the previous call's state.

        Returns:
            frames [B, M / 8, D], their valid number [B], and the new state (of use only for rows that
            filled the call; a shorter row is at its stream's end).
        """
        x = _mask_time(mel.unsqueeze(1), start, lengths)
        previous = (state.mel, state.first, state.second)
        carried = []
        for convolution, past in zip((self.conv_in, *self.layers), previous, strict=True):
            carried.append(x[:, :, -1:])
            x = torch.cat([past, x], dim=2)
            x = torch.relu(convolution(functional.pad(x, (2, 1))))
            start, lengths = start // 2, (lengths + 1) // 2
            x = _mask_time(x, start, lengths)
        batch, channels, frames, bins = x.shape
        x = self.linear(x.transpose(1, 2).reshape(batch, frames, channels * bins))
        return x, lengths, SubsamplingState(*carried)

    def initial_state(self, batch: int, like: Tensor, config: ModelConfig) -> SubsamplingState:
        """All-zero state for ``batch`` streams, with the dtype and device of ``like``."""
        bins, channels = config.num_mel_bins, config.subsampling_channels
        return SubsamplingState(
            like.new_zeros(batch, 1, 1, bins),
            like.new_zeros(batch, channels, 1, bins // 2 + 1),
            like.new_zeros(batch, channels, 1, (bins // 2 + 1) // 2 + 1),
        )


def _mask_time(x: Tensor, start: Tensor, lengths: Tensor) -> Tensor:
    """Zero the frames of x [B, C, T, F] outside [start, lengths)."""
    time = torch.arange(x.shape[2], device=x.device)
    keep = (time >= start[:, None]) & (time < lengths[:, None])
    return x * keep[:, None, :, None].to(x.dtype)
