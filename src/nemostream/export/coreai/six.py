"""The layout "six": native framing, all state explicit, nothing in the graphs but arithmetic.

    mel [1, 1 + 8 R, F] ─── stream_pre_first ─┐
    mel [1, 8 (R + 1), F] ─ stream_pre ───────┴▶ embeds [1, R + 1, D] ─ stream_conformer_a ─┐
        enc_proj [1, R + 1, J] ◀─ stream_conformer_b, with prompt and projection ───────────┘
    token, h, c ── predict ▶ dec_out [1, J] ──┐
    enc_frame [1, J] ─────────────────────────┴─ joint ▶ token_logits [1, V + 1]

Keys and values are windows [layers, heads, L, head size], right-aligned, so that distances and with them the
position tables are constants; ``neg_mask`` [1, 1, R + 1, L + R + 1] hides what is not filled yet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nemostream.config import SUBSAMPLING_FACTOR
from nemostream.export.coreai.assets import Graph
from nemostream.export.coreai.precision import Activations, Weights, prepared
from nemostream.framing import PHANTOM_MEL_FRAMES
from nemostream.model.network import Network
from nemostream.model.subsampling import Subsampling, SubsamplingState
from nemostream.runtimes import coreai_graphs as graphs


class _Stem(nn.Module):
    """The stem on one chunk; the entry point for a stream's last chunk is told how much of it is real."""

    def __init__(self, stem: Subsampling, network: Network, frames: int, first: bool) -> None:
        super().__init__()
        self.stem, self.config, self.first = stem, network.config, first
        self.lead = PHANTOM_MEL_FRAMES if first else 0
        self.register_buffer("start", torch.tensor([self.lead]))
        self.register_buffer("whole", torch.tensor([SUBSAMPLING_FACTOR * frames]))

    def forward(self, mel: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        caches, length = given[: 0 if self.first else 3], given[0 if self.first else 3 :]
        state = SubsamplingState(*caches) if caches else self.stem.initial_state(1, mel, self.config)
        rows = nn.functional.pad(mel, (0, 0, self.lead, 0))
        lengths = length[0] + self.lead if length else self.whole
        embeds, _, carried = self.stem(rows, self.start, lengths, state)
        return (embeds, *carried)


class _Conformer(nn.Module):
    """Some of the layers on one chunk, and after the last one the prompt and the projection to the joint."""

    def __init__(self, part: nn.ModuleDict, tables: list[Tensor], network: Network) -> None:
        super().__init__()
        self.part: Any = part
        self.config = network.config
        for index, table in enumerate(tables):
            self.register_buffer(f"positions_{index}", table)

    def forward(
        self, x: Tensor, neg_mask: Tensor, keys: Tensor, values: Tensor, gated: Tensor, *one_hot: Tensor
    ) -> tuple[Tensor, ...]:
        mask = neg_mask > graphs.HIDDEN_KEY / 2
        real = x.new_ones(1, x.shape[1], 1)
        kept: tuple[list[Tensor], ...] = ([], [], [])
        for index, layer in enumerate(self.part["layers"]):
            past = _frames_of(keys[index]), _frames_of(values[index]), gated[index].t().unsqueeze(0)
            x, new = layer(x, *past, mask, getattr(self, f"positions_{index}"), real)
            kept[0].append(self._heads_of(_last(past[0], new.keys)))
            kept[1].append(self._heads_of(_last(past[1], new.values)))
            kept[2].append(_last(past[2], new.gated).t())
        if "encoder_projector" in self.part:
            x = self.part["encoder_projector"](self._prompted(x, *one_hot))
        return (x, *(torch.stack(tensors) for tensors in kept))

    def _prompted(self, x: Tensor, *one_hot: Tensor) -> Tensor:
        """`Network.fuse` with the slot as a one-hot vector [1, P], so that the matrix is used whole."""
        if not one_hot:
            return x
        prompt = self.part["prompt_projector"]
        both = torch.cat([x, one_hot[0].unsqueeze(1).expand(-1, x.shape[1], -1)], dim=2)
        return prompt.linear_2(torch.relu(prompt.linear_1(both)))  # type: ignore[no-any-return]

    def _heads_of(self, frames: Tensor) -> Tensor:
        """[L, D] -> [heads, L, head size]."""
        return frames.unflatten(1, (self.config.num_heads, self.config.head_size)).transpose(0, 1)  # type: ignore[no-any-return, no-untyped-call]


def _frames_of(heads: Tensor) -> Tensor:
    """[heads, L, head size] -> [1, L, D]."""
    return heads.transpose(0, 1).flatten(1).unsqueeze(0)


def _last(past: Tensor, new: Tensor) -> Tensor:
    """The last frames of past [1, P, D] and new [1, N, D], as many as the past had: [P, D]."""
    return torch.cat([past, new], dim=1)[0, -past.shape[1] :]


def stem_graphs(network: Network, frames: int, first: bool, activations: Activations) -> list[Graph]:
    """Entry points of ``stream_pre_first`` or ``stream_pre``."""
    config = network.config
    stem = prepared(network.encoder.subsampling, activations, activations)
    like = stem.linear.weight
    rows = SUBSAMPLING_FACTOR * frames - (PHANTOM_MEL_FRAMES if first else 0)
    inputs = {"mel": like.new_zeros(1, rows, config.num_mel_bins)}
    if not first:
        inputs |= dict(zip(graphs.STEM_CACHES, stem.initial_state(1, like, config), strict=True))
    outputs = ("embeds", *graphs.out(graphs.STEM_CACHES))
    module = _Stem(stem, network, frames, first)
    length = {"mel_length": torch.tensor([rows], dtype=torch.int32)}
    return [Graph(module, inputs, outputs), Graph(module, inputs | length, outputs, graphs.LAST)]


def conformer_graph(
    network: Network,
    layers: range,
    att_context: tuple[int, int],
    weights: Weights,
    activations: Activations,
) -> Graph:
    """``stream_conformer_a`` or, with the last layer among ``layers``, ``stream_conformer_b``."""
    config, (left, right) = network.config, att_context
    frames, last = right + 1, layers.stop == config.num_layers
    parts: dict[str, nn.Module] = {"layers": network.encoder.layers[layers.start : layers.stop]}
    if last:
        parts["encoder_projector"] = network.encoder_projector
        if config.has_prompt:
            parts["prompt_projector"] = network.prompt_projector
    part = prepared(nn.ModuleDict(parts), weights, activations)
    dtype = torch.float16 if activations == "fp16" else torch.float32
    tables = network.encoder.position_tables(left, frames)[layers.start : layers.stop]
    tables = [table.contiguous().to(dtype) for table in tables]
    cache = torch.zeros(len(layers), config.num_heads, left, config.head_size, dtype=dtype)
    gated = torch.zeros(len(layers), config.hidden_size, config.conv_kernel_size - 1, dtype=dtype)
    inputs = {
        "x": torch.zeros(1, frames, config.hidden_size, dtype=dtype),
        "neg_mask": torch.zeros(1, 1, frames, left + frames, dtype=dtype),
        **dict(zip(graphs.LAYER_CACHES, (cache, cache.clone(), gated), strict=True)),
    }
    if last and config.has_prompt:
        inputs["one_hot"] = torch.zeros(1, config.num_prompts, dtype=dtype)
    outputs = ("enc_proj" if last else "x_out", *graphs.out(graphs.LAYER_CACHES))
    return Graph(_Conformer(part, tables, network), inputs, outputs)
