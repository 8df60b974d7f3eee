"""Convolutional stem, see `nemostream.model.subsampling`; here with channels last, [B, time, frequency, C].

It always computes in fp32: log-mel values lie between -17 and about 5, where bf16 has steps of up to an
eighth, and the stem is a small part of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx import nn

from nemostream.config import ModelConfig


class DepthwiseSeparable(nn.Module):
    """Depthwise 3x3 convolution of stride 2, then a linear layer over channels (``layers.N``)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise_conv = nn.Conv2d(channels, channels, 3, stride=2, groups=channels)
        self.pointwise_conv = nn.Linear(channels, channels)

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, F, C] -> [B, T', F', C]; the caller pads."""
        return self.pointwise_conv(self.depthwise_conv(x))


class Subsampling(nn.Module):
    """The stem (checkpoint prefix ``encoder.subsampling``); ``linear`` takes its input by frequency."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        channels = config.subsampling_channels
        self.conv_in = nn.Conv2d(1, channels, 3, stride=2)
        self.layers = [DepthwiseSeparable(channels), DepthwiseSeparable(channels)]
        self.linear = nn.Linear(channels * config.subsampled_mel_bins(), config.hidden_size)

    def __call__(
        self, mel: mx.array, masks: Sequence[mx.array], state: Sequence[mx.array]
    ) -> tuple[mx.array, list[mx.array]]:
        """Run one call.

        Args:
            mel: [B, M, F], M a multiple of 8.
            masks: [B, M], [B, M / 2], [B, M / 4], [B, M / 8] from `rows.stem_masks`.
            state: the last input frame of each convolution, shapes as in `state_shapes` behind a batch.

        Returns:
            frames [B, M / 8, D], and the new state.
        """
        x = (mel * masks[0][:, :, None])[..., None]
        carried = []
        for convolution, past, mask in zip((self.conv_in, *self.layers), state, masks[1:], strict=True):
            carried.append(x[:, -1:])
            x = mx.pad(mx.concatenate([past, x], axis=1), ((0, 0), (0, 0), (2, 1), (0, 0)))
            x = nn.relu(convolution(x)) * mask[:, :, None, None]
        return self.linear(x.flatten(2)), carried


def state_shapes(config: ModelConfig) -> list[tuple[int, ...]]:
    """Shapes of the input frames that the stem carries for one stream: [1, bins, channels] each."""
    bins, channels = config.num_mel_bins, config.subsampling_channels
    half = bins // 2 + 1
    return [(1, bins, 1), (1, half, channels), (1, half // 2 + 1, channels)]
