"""Self-attention with relative positions, see `nemostream.model.attention` for the mathematics.

score(i, j) = ((q_i + u) . k_j + (q_i + v) . p_delta) / sqrt(head size). The second term is computed first and
handed to MLX's fused attention as an additive mask.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx import nn

from nemostream.config import ModelConfig
from nemostream.runtimes.protocol import Float32

MASKED_SCORE = -1e4  # finite, so that a row with nothing to see gives no NaN, also in fp16


def position_encoding(past: int, frames: int, hidden_size: int) -> Float32:
    """Sinusoids of distances, [past + 2 * frames, hidden_size]; row r is distance past + frames - 1 - r."""
    distance = np.arange(past + frames - 1, -frames - 1, -1, dtype=np.float32)
    rate = np.exp(np.arange(0, hidden_size, 2, dtype=np.float32) * np.float32(-np.log(10000.0) / hidden_size))
    angle = distance[:, None] * rate
    return np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(len(distance), hidden_size)


class RelativeAttention(nn.Module):
    """Multi-head attention over cached and new frames (checkpoint name ``self_attn``).

    In place of ``relative_k_proj`` it has ``positions`` [heads, P + 2 * longest call, head size]: what that
    layer makes of `position_encoding`, which is all that it is for.
    """

    def __init__(self, config: ModelConfig, past: int, max_frames: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.scale = config.head_size**-0.5
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)
        self.bias_u = mx.zeros((config.num_heads, config.head_size))
        self.bias_v = mx.zeros((config.num_heads, config.head_size))
        self.positions = mx.zeros((config.num_heads, past + 2 * max_frames, config.head_size))

    def __call__(
        self, x: mx.array, past_keys: mx.array, past_values: mx.array, visible: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Attend.

        Args:
            x: [B, N, D] normalised input.
            past_keys: [B, P, D] projected keys of earlier frames.
            past_values: [B, P, D] their values.
            visible: [B, 1, N, P + N] bool from `rows.chunk_mask`.

        Returns:
            output [B, N, D], and keys and values [B, P + N, D] of old and new frames.
        """
        frames, past = x.shape[1], past_keys.shape[1]
        keys = mx.concatenate([past_keys, self.k_proj(x)], axis=1)
        values = mx.concatenate([past_values, self.v_proj(x)], axis=1)
        query = self._heads(self.q_proj(x))
        skipped = (
            self.positions.shape[1] - past
        ) // 2 - frames  # rows of distances that a shorter call lacks
        positions = self.positions[:, skipped : skipped + past + 2 * frames]
        by_position = _relative_shift((query + self.bias_v[:, None]) @ positions.swapaxes(1, 2))
        mixed = mx.fast.scaled_dot_product_attention(
            query + self.bias_u[:, None],
            self._heads(keys),
            self._heads(values),
            scale=self.scale,
            mask=mx.where(visible, by_position * self.scale, MASKED_SCORE),
        )
        return self.o_proj(mixed.swapaxes(1, 2).flatten(2)), keys, values

    def _heads(self, x: mx.array) -> mx.array:
        """[B, T, D] -> [B, heads, T, head size]."""
        return mx.unflatten(x, 2, self.bias_u.shape).swapaxes(1, 2)


def _relative_shift(scores: mx.array) -> mx.array:
    """Pick, for query i and key j, the column of their distance: column N - 1 - i + j of [B, H, N, P + 2 N].

    Reading the flattened rows with a stride of W - 1 instead of W does this without an index.

    Returns:
        [B, H, N, P + N].
    """
    frames, width = scores.shape[2], scores.shape[3]
    flat = scores.flatten(2)[:, :, frames - 1 : frames - 1 + frames * (width - 1)]
    return mx.unflatten(flat, 2, (frames, width - 1))[..., : width - frames]
