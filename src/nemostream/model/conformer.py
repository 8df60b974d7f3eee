"""One conformer layer: half feed-forward, attention, causal convolution, half feed-forward, norm."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nemostream.config import ModelConfig
from nemostream.model.attention import RelativeAttention


class FeedForward(nn.Module):
    """Linear, SiLU, linear (``feed_forward1`` and ``feed_forward2``); no biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.linear1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.linear2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.linear2(functional.silu(self.linear1(x)))  # type: ignore[no-any-return]


class CausalConvolution(nn.Module):
    """Gated pointwise, causal depthwise convolution, LayerNorm, SiLU, pointwise (``conv``).

    ```
    past (kernel - 1 frames)  new frames
    [ g g g g g g g g ] [ n n n n ]       output t sees inputs t - 8 .. t
    ```
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.pointwise_conv1 = nn.Conv1d(size, 2 * size, 1, bias=False)
        self.depthwise_conv = nn.Conv1d(size, size, config.conv_kernel_size, groups=size, bias=False)
        self.norm = nn.LayerNorm(size)
        self.pointwise_conv2 = nn.Conv1d(size, size, 1, bias=False)

    def forward(self, x: Tensor, past: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Run over new frames.

        Args:
            x: [B, N, D].
            past: [B, kernel - 1, D] gated frames before them, zeros at a stream's start.
            real: [B, N, 1] 1.0 for a real frame, 0.0 for padding.

        Returns:
            output [B, N, D] and the gated new frames [B, N, D].
        """
        # a pointwise convolution is a linear layer; as one it needs no transposes
        value, gate = functional.linear(x, self.pointwise_conv1.weight.squeeze(2)).chunk(2, dim=2)
        gated = value * torch.sigmoid(gate) * real
        y = self.depthwise_conv(torch.cat([past, gated], dim=1).transpose(1, 2)).transpose(1, 2)
        y = functional.silu(self.norm(y))
        return functional.linear(y, self.pointwise_conv2.weight.squeeze(2)), gated


class LayerPast(NamedTuple):
    """What a layer carries from earlier calls."""

    keys: Tensor  # [B, P, D] projected keys, right-aligned
    values: Tensor  # [B, P, D]
    gated: Tensor  # [B, kernel - 1, D] input of the depthwise convolution


class NewFrames(NamedTuple):
    """What a layer leaves behind for later calls, each [B, N, D]."""

    attention_input: Tensor  # the normalised input that NeMo caches (``cache_last_channel``)
    keys: Tensor
    values: Tensor
    gated: Tensor  # input of the depthwise convolution (``cache_last_time``)


class ConformerLayer(nn.Module):
    """A layer of the encoder (checkpoint prefix ``encoder.layers.N``)."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        size = config.hidden_size
        self.feed_forward1 = FeedForward(config)
        self.self_attn = RelativeAttention(config)
        self.conv = CausalConvolution(config)
        self.feed_forward2 = FeedForward(config)
        self.norm_feed_forward1 = nn.LayerNorm(size)
        self.norm_self_att = nn.LayerNorm(size)
        self.norm_conv = nn.LayerNorm(size)
        self.norm_feed_forward2 = nn.LayerNorm(size)
        self.norm_out = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
        past_gated: Tensor,
        mask: Tensor,
        positions: Tensor,
        real: Tensor,
    ) -> tuple[Tensor, NewFrames]:
        """Run x [B, N, D]; see `RelativeAttention.forward` and `CausalConvolution.forward` for the rest."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        attention_input = self.norm_self_att(x)
        attended, keys, values = self.self_attn(attention_input, past_keys, past_values, mask, positions)
        x = x + self.dropout(attended)
        convolved, gated = self.conv(self.norm_conv(x), past_gated, real)
        x = x + self.dropout(convolved)
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_out(x), NewFrames(attention_input, keys, values, gated)
