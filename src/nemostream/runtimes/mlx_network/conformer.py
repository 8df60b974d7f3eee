"""One conformer layer, see `nemostream.model.conformer`."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
from mlx import nn

from nemostream.config import ModelConfig
from nemostream.runtimes.mlx_network.attention import RelativeAttention


class FeedForward(nn.Module):
    """Linear, SiLU, linear (``feed_forward1`` and ``feed_forward2``); no biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.linear1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.linear2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, D] -> [B, T, D]."""
        return self.linear2(nn.silu(self.linear1(x)))


class DepthwiseConvolution(nn.Module):
    """A filter of ``kernel`` taps for every channel; ``weight`` is [kernel, D]."""

    def __init__(self, kernel: int, channels: int) -> None:
        super().__init__()
        self.weight = mx.zeros((kernel, channels))

    def __call__(self, x: mx.array) -> mx.array:
        """[B, kernel - 1 + N, D] -> [B, N, D]: the sum of shifted inputs, tap by tap."""
        kernel = self.weight.shape[0]
        frames = x.shape[1] - kernel + 1
        total = x[:, :frames] * self.weight[0]
        for tap in range(1, kernel):
            total = total + x[:, tap : tap + frames] * self.weight[tap]
        return total


class CausalConvolution(nn.Module):
    """Gated pointwise, causal depthwise convolution, LayerNorm, SiLU, pointwise (``conv``)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.pointwise_conv1 = nn.Linear(size, 2 * size, bias=False)
        self.depthwise_conv = DepthwiseConvolution(config.conv_kernel_size, size)
        self.norm = nn.LayerNorm(size)
        self.pointwise_conv2 = nn.Linear(size, size, bias=False)

    def __call__(self, x: mx.array, past: mx.array, real: mx.array) -> tuple[mx.array, mx.array]:
        """Run over new frames.

        Args:
            x: [B, N, D].
            past: [B, kernel - 1, D] gated frames before them, zeros at a stream's start.
            real: [B, N, 1] 1 for a real frame, 0 for padding.

        Returns:
            output [B, N, D] and the gated frames [B, kernel - 1 + N, D], old and new.
        """
        value, gate = mx.split(self.pointwise_conv1(x), 2, axis=2)
        gated = mx.concatenate([past, value * mx.sigmoid(gate) * real], axis=1)
        y = nn.silu(self.norm(self.depthwise_conv(gated)))
        return self.pointwise_conv2(y), gated


class LayerState(NamedTuple):
    """What a layer carries from call to call."""

    keys: mx.array  # [B, P, D] projected keys, right-aligned
    values: mx.array  # [B, P, D]
    gated: mx.array  # [B, kernel - 1, D] input of the depthwise convolution


class ConformerLayer(nn.Module):
    """A layer of the encoder (checkpoint prefix ``encoder.layers.N``)."""

    def __init__(self, config: ModelConfig, past: int, max_frames: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.feed_forward1 = FeedForward(config)
        self.self_attn = RelativeAttention(config, past, max_frames)
        self.conv = CausalConvolution(config)
        self.feed_forward2 = FeedForward(config)
        self.norm_feed_forward1 = nn.LayerNorm(size)
        self.norm_self_att = nn.LayerNorm(size)
        self.norm_conv = nn.LayerNorm(size)
        self.norm_feed_forward2 = nn.LayerNorm(size)
        self.norm_out = nn.LayerNorm(size)

    def __call__(
        self, x: mx.array, past: LayerState, visible: mx.array, real: mx.array
    ) -> tuple[mx.array, LayerState]:
        """Run x [B, N, D]; see `RelativeAttention` and `CausalConvolution` for the rest.

        The new state is the end of all that the layer has seen. For a row with padding that is not what a
        later frame would need, but such a row is at its stream's end.
        """
        frames = x.shape[1]
        x = x + 0.5 * self.feed_forward1(self.norm_feed_forward1(x))
        attended, keys, values = self.self_attn(self.norm_self_att(x), past.keys, past.values, visible)
        x = x + attended
        convolved, gated = self.conv(self.norm_conv(x), past.gated, real)
        x = x + convolved
        x = x + 0.5 * self.feed_forward2(self.norm_feed_forward2(x))
        return self.norm_out(x), LayerState(keys[:, frames:], values[:, frames:], gated[:, frames:])
