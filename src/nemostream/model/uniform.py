"""The encoder step of NeMo's fixed-shape exports: uniform windows and NeMo's own caches.

Every call takes the same window, 9 mel frames of history and 8 N new ones, and drops the first two outputs
of the stem. What is cached per layer is the normalised attention *input* (``cache_last_channel``), so keys
and values of old frames are projected again at every step, and the last 8 gated frames of the convolution
(``cache_last_time``). CoreML and sherpa-onnx bundles have this contract; its numbers are not those of
native framing, since it samples another phase of the stem.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nemostream.config import ModelConfig
from nemostream.framing import PHANTOM_MEL_FRAMES, UNIFORM_HISTORY
from nemostream.model.attention import chunk_mask
from nemostream.model.encoder import Encoder, keep_last
from nemostream.model.subsampling import Subsampling

DROPPED_FRAMES = (UNIFORM_HISTORY + PHANTOM_MEL_FRAMES) // 8  # 2: the history, NeMo's drop_extra_pre_encoded


class UniformState(NamedTuple):
    """NeMo's streaming caches.

    ``cache_last_channel [layers, B, left, D]``, ``cache_last_time [layers, B, D, 8]``,
    ``cache_last_channel_len [B]`` int64: valid frames of the first.
    """

    cache_last_channel: Tensor
    cache_last_time: Tensor
    cache_last_channel_len: Tensor


def initial_uniform_state(encoder: Encoder, batch: int, left: int) -> UniformState:
    """Zeros, for ``batch`` streams that have not begun."""
    config, like = encoder.config, encoder.subsampling.linear.weight
    return UniformState(
        like.new_zeros(config.num_layers, batch, left, config.hidden_size),
        like.new_zeros(config.num_layers, batch, config.hidden_size, config.conv_kernel_size - 1),
        torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


def uniform_step(
    encoder: Encoder,
    mel: Tensor,
    mel_lengths: Tensor,
    state: UniformState,
    att_context: Tensor,
    tables: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor, UniformState]:
    """Encode one window.

    Args:
        encoder: the reference encoder.
        mel: [B, 9 + 8 N, F]; the first 9 rows of a stream's first window are zeros.
        mel_lengths: [B] int64, rows up to the last real one, history included.
        state: from `initial_uniform_state` or the previous call.
        att_context: [B, 2] int64, left and right context of each row.
        tables: ``encoder.position_tables(left, N)``, if the caller keeps them.

    Returns:
        encoded [B, N, D], valid frames [B] and the new state.
    """
    x, lengths = uniform_stem(encoder.subsampling, mel, mel_lengths, encoder.config)
    if tables is None:
        tables = encoder.position_tables(state.cache_last_channel.shape[2], x.shape[1])
    return uniform_layers(encoder.layers, x, lengths, state, att_context, tables)


def uniform_stem(
    subsampling: Subsampling, mel: Tensor, mel_lengths: Tensor, config: ModelConfig
) -> tuple[Tensor, Tensor]:
    """The stem of `uniform_step`: mel [B, 9 + 8 N, F], lengths [B] -> [B, N, D] and valid frames [B]."""
    batch, lead = mel.shape[0], PHANTOM_MEL_FRAMES  # each window is a stream of its own to the stem
    padded = torch.nn.functional.pad(mel, (0, 0, lead, 0))
    start = torch.full((batch,), lead, device=mel.device)
    state = subsampling.initial_state(batch, mel, config)
    x, lengths, _ = subsampling(padded, start, mel_lengths + lead, state)
    return x[:, DROPPED_FRAMES:], (lengths - DROPPED_FRAMES).clamp(min=0)


def uniform_layers(
    layers: Iterable[nn.Module],
    x: Tensor,
    lengths: Tensor,
    state: UniformState,
    att_context: Tensor,
    tables: Sequence[Tensor],
) -> tuple[Tensor, Tensor, UniformState]:
    """The layers of `uniform_step`, or some of them in a row.

    Args:
        layers: `ConformerLayer`s.
        x: [B, N, D] from `uniform_stem` or the layers before.
        lengths: [B] valid frames of x.
        state: the part of the caches that belongs to these layers.
        att_context: as in `uniform_step`.
        tables: position tables of these layers.

    Returns:
        as `uniform_step`.
    """
    frames, past = x.shape[1], state.cache_last_channel.shape[2]
    past_lengths = state.cache_last_channel_len
    mask = chunk_mask(frames, past, att_context, past_lengths, lengths)
    real = (torch.arange(frames, device=x.device) < lengths[:, None]).unsqueeze(2).to(x.dtype)
    channels, times = [], []
    for index, layer in enumerate(layers):
        cached = state.cache_last_channel[index]
        past_keys, past_values = layer.self_attn.project_past(cached)  # type: ignore[union-attr, operator]
        past_gated = state.cache_last_time[index].transpose(1, 2)
        x, new = layer(x, past_keys, past_values, past_gated, mask, tables[index], real)
        channels.append(keep_last(cached, new.attention_input, lengths))
        times.append(keep_last(past_gated, new.gated, lengths).transpose(1, 2))
    new_state = UniformState(
        torch.stack(channels), torch.stack(times), (past_lengths + lengths).clamp(max=past)
    )
    return x, lengths, new_state
