"""The cache-aware FastConformer encoder, in native framing.

`Encoder.forward` is the only forward there is: a whole utterance is one call without a past, a live stream
is many calls with an `EncoderState` handed from one to the next, and both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nemostream.config import SUBSAMPLING_FACTOR, ModelConfig
from nemostream.framing import PHANTOM_MEL_FRAMES
from nemostream.model.attention import chunk_mask, position_encoding
from nemostream.model.conformer import ConformerLayer, LayerPast, NewFrames
from nemostream.model.subsampling import Subsampling, SubsamplingState


@dataclass(frozen=True)
class EncoderState:
    """Everything that a stream carries from call to call; rows of a batch are independent.

    Attributes:
        keys: [layers, B, left, D] projected keys, right-aligned.
        values: [layers, B, left, D].
        gated: [layers, B, kernel - 1, D] history of the depthwise convolutions.
        subsampling: history of the stem.
        frames: [B] int64, encoder frames so far; 0 marks a stream that has not begun.
    """

    keys: Tensor
    values: Tensor
    gated: Tensor
    subsampling: SubsamplingState
    frames: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """The state as a flat tuple, in the order of the fields."""
        return (self.keys, self.values, self.gated, *self.subsampling, self.frames)

    def layers(self) -> list[LayerPast]:
        """What each layer carries."""
        return [LayerPast(*past) for past in zip(self.keys, self.values, self.gated, strict=True)]

    @classmethod
    def from_tensors(cls, tensors: tuple[Tensor, ...]) -> EncoderState:
        """Rebuild a state from `tensors`."""
        keys, values, gated, *stem, frames = tensors
        return cls(keys, values, gated, SubsamplingState(*stem), frames)


class Encoder(nn.Module):
    """Stem and conformer layers (checkpoint prefix ``encoder``)."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.subsampling = Subsampling(config)
        self.layers = nn.ModuleList([ConformerLayer(config, dropout) for _ in range(config.num_layers)])
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, batch: int, left: int) -> EncoderState:
        """State of ``batch`` streams that have not begun, with room for ``left`` frames of context."""
        config, like = self.config, self.subsampling.linear.weight
        cache = like.new_zeros(config.num_layers, batch, left, config.hidden_size)
        return EncoderState(
            keys=cache,
            values=cache.clone(),
            gated=like.new_zeros(config.num_layers, batch, config.conv_kernel_size - 1, config.hidden_size),
            subsampling=self.subsampling.initial_state(batch, like, config),
            frames=torch.zeros(batch, dtype=torch.int64, device=like.device),
        )

    def position_tables(self, past: int, frames: int) -> list[Tensor]:
        """Projected position table of every layer, [heads, past + 2 * frames, head size] each."""
        encoding = position_encoding(past, frames, self.config.hidden_size)
        encoding = encoding.to(self.subsampling.linear.weight.device)
        return [layer.self_attn.project_positions(encoding) for layer in self.layers]  # type: ignore[union-attr, operator]

    def forward(
        self,
        mel: Tensor,
        mel_lengths: Tensor,
        state: EncoderState,
        att_context: Tensor,
        tables: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, EncoderState]:
        """Encode one call of a whole number of chunks.

        Args:
            mel: [B, 8 N, F]; rows of streams that have not begun start with 7 rows of padding.
            mel_lengths: [B] int64, rows up to the last real one, those 7 included. A row that does not fill
                its last chunk is at its stream's end.
            state: from `initial_state` or the previous call; its cache may be empty (left 0) offline.
            att_context: [B, 2] int64, left and right context of each row; left is a multiple of right + 1
                and not above the cache, unless the cache is empty.
            tables: `position_tables(state.keys.shape[2], N)`, if the caller keeps them.

        Returns:
            encoded [B, N, D], valid frames [B] and the new state.
        """
        x, lengths, stem, new = self.step(
            mel, mel_lengths, state.frames, state.layers(), state.subsampling, att_context, tables
        )
        new_state = EncoderState(
            keys=torch.stack([keep_last(state.keys[i], n.keys, lengths) for i, n in enumerate(new)]),
            values=torch.stack([keep_last(state.values[i], n.values, lengths) for i, n in enumerate(new)]),
            gated=torch.stack([keep_last(state.gated[i], n.gated, lengths) for i, n in enumerate(new)]),
            subsampling=stem,
            frames=state.frames + lengths,
        )
        return x, lengths, new_state

    def step(
        self,
        mel: Tensor,
        mel_lengths: Tensor,
        seen: Tensor,
        past: Sequence[LayerPast],
        stem: SubsamplingState,
        att_context: Tensor,
        tables: list[Tensor] | None,
    ) -> tuple[Tensor, Tensor, SubsamplingState, list[NewFrames]]:
        """`forward` up to what each layer leaves behind, for a caller that keeps the past itself.

        Args:
            mel: as in `forward`; so are ``mel_lengths``, ``att_context`` and ``tables``.
            seen: [B] int64, encoder frames so far.
            past: of every layer.
            stem: history of the stem.

        Returns:
            encoded [B, N, D], valid frames [B], the stem's new state and the new frames of every layer.
        """
        start = torch.where(seen == 0, PHANTOM_MEL_FRAMES, 0)
        x, lengths, stem = self.subsampling(mel, start, mel_lengths, stem)
        room, frames = past[0].keys.shape[1], x.shape[1]
        mask = chunk_mask(frames, room, att_context, seen.clamp(max=room), lengths)
        real = (torch.arange(frames, device=x.device) < lengths[:, None]).unsqueeze(2).to(x.dtype)
        if tables is None:
            tables = self.position_tables(room, frames)
        x = self.dropout(x)
        left_behind = []
        for layer, carried, table in zip(self.layers, past, tables, strict=True):
            x, new = layer(x, carried.keys, carried.values, carried.gated, mask, table, real)
            left_behind.append(new)
        return x, lengths, stem, left_behind

    def encode_utterance(
        self, mel: Tensor, mel_lengths: Tensor, att_context_size: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Encode whole utterances: mel [B, T, F], lengths [B] in mel frames -> [B, N, D], [B].

        This is the offline, chunk-masked forward that streaming must equal.
        """
        rows = PHANTOM_MEL_FRAMES + mel.shape[1]
        mel = nn.functional.pad(mel, (0, 0, PHANTOM_MEL_FRAMES, -rows % SUBSAMPLING_FACTOR))
        state = self.initial_state(mel.shape[0], left=0)
        att_context = torch.tensor([att_context_size] * mel.shape[0], device=mel.device)
        encoded, lengths, _, _ = self.step(
            mel,
            mel_lengths + PHANTOM_MEL_FRAMES,
            state.frames,
            state.layers(),
            state.subsampling,
            att_context,
            None,
        )
        return encoded, lengths


def keep_last(past: Tensor, new: Tensor, lengths: Tensor) -> Tensor:
    """Append each row's valid new frames to its past and keep as many frames as the past had.

    past [B, P, D], new [B, N, D], lengths [B] -> [B, P, D].
    """
    window = torch.cat([past, new], dim=1)
    index = lengths[:, None] + torch.arange(past.shape[1], device=past.device)
    return window.gather(1, index[:, :, None].expand(-1, -1, window.shape[2]))
