"""Self-attention with relative positions (Transformer-XL) under a chunk-limited mask.

score(i, j) = ((q_i + u) . k_j + (q_i + v) . p_delta) / sqrt(head size), delta = position(i) - position(j),
p = W_pos PE. No biases but u and v, one pair per head (``self_attn.bias_u``, ``bias_v``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nemostream.config import ModelConfig

MASKED_SCORE = -1e4  # finite, so that a row with nothing to see gives no NaN, also in fp16


def position_encoding(past: int, frames: int, hidden_size: int) -> Tensor:
    """Sinusoids of the distances that ``frames`` queries see over ``past`` + ``frames`` keys.

    Returns:
        [past + 2 * frames, hidden_size] float32; row r is the distance past + frames - 1 - r, sine and
        cosine interleaved. The last row is never used; it makes `_relative_shift` work for one frame.
    """
    distance = torch.arange(past + frames - 1, -frames - 1, -1, dtype=torch.float32)
    rate = torch.exp(
        torch.arange(0, hidden_size, 2, dtype=torch.float32) * (-math.log(10000.0) / hidden_size)
    )
    angle = distance[:, None] * rate
    return torch.stack([torch.sin(angle), torch.cos(angle)], dim=2).flatten(1)


def chunk_mask(frames: int, past: int, att_context: Tensor, past_lengths: Tensor, lengths: Tensor) -> Tensor:
    """Which keys each query may see: [B, 1, frames, past + frames] bool.

    A chunk is right + 1 frames; a query sees its own chunk and the left // (right + 1) chunks before it
    (NeMo ``chunked_limited``). A call begins at a chunk border, so chunks count from its first frame.

    Args:
        frames: new frames.
        past: cached frames, right-aligned before the new ones.
        att_context: [B, 2] int64, left and right context of each row.
        past_lengths: [B] int64, how many of the cached frames are real.
        lengths: [B] int64, how many of the new frames are real.
    """
    query = torch.arange(frames, device=lengths.device)
    key = torch.arange(-past, frames, device=lengths.device)
    chunk = att_context[:, 1:] + 1
    query_chunk = query // chunk
    key_chunk = (key + chunk * past) // chunk - past  # shifted, so that no negative number is divided
    behind = query_chunk[:, :, None] - key_chunk[:, None, :]
    visible = (behind >= 0) & (behind <= (att_context[:, :1] // chunk)[:, :, None])
    real = (key >= -past_lengths[:, None]) & (key < lengths[:, None])
    return (visible & real[:, None, :]).unsqueeze(1)


class RelativeAttention(nn.Module):
    """Multi-head attention over cached and new frames (checkpoint name ``self_attn``)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.head_size = config.head_size
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)
        self.relative_k_proj = nn.Linear(size, size, bias=False)
        self.bias_u = nn.Parameter(torch.zeros(self.num_heads, self.head_size))
        self.bias_v = nn.Parameter(torch.zeros(self.num_heads, self.head_size))

    def project_positions(self, encoding: Tensor) -> Tensor:
        """[W, D] of `position_encoding` -> [heads, W, head size]. Depends on no input: compute it once."""
        projected = self.relative_k_proj(encoding.to(self.relative_k_proj.weight.dtype))
        return projected.view(-1, self.num_heads, self.head_size).transpose(0, 1)  # type: ignore[no-any-return]

    def project_past(self, cached: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, P, D] of cached attention inputs [B, P, D] (NeMo's form of the cache)."""
        return self.k_proj(cached), self.v_proj(cached)

    def forward(
        self, x: Tensor, past_keys: Tensor, past_values: Tensor, mask: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend.

        Args:
            x: [B, N, D] normalised input.
            past_keys: [B, P, D] projected keys of earlier frames.
            past_values: [B, P, D] their values.
            mask: [B, 1, N, P + N] bool from `chunk_mask`.
            positions: [heads, P + 2 N, head size] from `project_positions`.

        Returns:
            output [B, N, D], and the keys and values [B, N, D] of the new frames.
        """
        query = self._heads(self.q_proj(x))
        new_keys, new_values = self.k_proj(x), self.v_proj(x)
        keys = self._heads(torch.cat([past_keys, new_keys], dim=1))
        values = self._heads(torch.cat([past_values, new_values], dim=1))
        by_content = torch.matmul(query + self.bias_u[:, None], keys.transpose(2, 3))
        by_position = torch.matmul(query + self.bias_v[:, None], positions.transpose(1, 2))
        scores = (by_content + _relative_shift(by_position)) * self.head_size**-0.5
        weights = torch.softmax(scores.masked_fill(~mask, MASKED_SCORE), dim=-1)
        mixed = torch.matmul(weights, values).transpose(1, 2).flatten(2)
        return self.o_proj(mixed), new_keys, new_values

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.num_heads, self.head_size)).transpose(1, 2)  # type: ignore[no-any-return, no-untyped-call]


def _relative_shift(scores: Tensor) -> Tensor:
    """Pick, for query i and key j, the column of their distance: column N - 1 - i + j of [B, H, N, P + 2 N].

    Reading the flattened rows with a stride of W - 1 instead of W does this without an index.

    Returns:
        [B, H, N, P + N].
    """
    frames, width = scores.shape[2], scores.shape[3]
    flat = scores.flatten(2)[:, :, frames - 1 : frames - 1 + frames * (width - 1)]
    return flat.unflatten(2, (frames, width - 1))[:, :, :, : width - frames]  # type: ignore[no-any-return, no-untyped-call]
