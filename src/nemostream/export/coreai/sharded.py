"""The layout "sharded": uniform framing, NeMo's caches, four shards of the encoder.

    mel [1, F, 9 + 8 N] ─ shard 0 ▶ hidden [1, N, D] ─ shard 1 ─ shard 2 ─ shard 3 ▶ encoded [1, D, N]

Every shard also takes its slice of the caches: ``cache_channel`` [1, layers, L, D], ``cache_time``
[1, layers, D, 8], ``cache_len`` [1]; ``length`` [1], of the mel frames for shard 0 and of the frames for the
others; and ``prompt_id`` [1], which the last one applies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nemostream.config import SUBSAMPLING_FACTOR
from nemostream.export.coreai.assets import Graph
from nemostream.export.coreai.precision import Activations, Weights, prepared
from nemostream.framing import UNIFORM_HISTORY
from nemostream.model.network import Network
from nemostream.model.uniform import UniformState, uniform_layers, uniform_stem
from nemostream.runtimes import coreai_graphs as graphs
from nemostream.runtimes.coreml_contract import SHARDS, shard_layers


class _Shard(nn.Module):
    """Layers in a row; before the first the stem, after the last the prompt."""

    def __init__(
        self, part: nn.ModuleDict, tables: list[Tensor], att_context: tuple[int, int], network: Network
    ) -> None:
        super().__init__()
        self.part: Any = part
        self.config = network.config
        self.att_context: Tensor
        self.register_buffer("att_context", torch.tensor([att_context]))
        for index, table in enumerate(tables):
            self.register_buffer(f"positions_{index}", table)

    def forward(
        self,
        x: Tensor,
        length: Tensor,
        cache_channel: Tensor,
        cache_time: Tensor,
        cache_len: Tensor,
        prompt_id: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        lengths, layers = length.long(), self.part["layers"]
        if "subsampling" in self.part:
            x, lengths = uniform_stem(self.part["subsampling"], x.transpose(1, 2), lengths, self.config)
        tables = [getattr(self, f"positions_{index}") for index in range(len(layers))]
        state = UniformState(cache_channel.transpose(0, 1), cache_time.transpose(0, 1), cache_len.long())
        x, lengths, new = uniform_layers(layers, x, lengths, state, self.att_context, tables)
        if prompt_id is not None and "prompt_projector" in self.part:
            x = self.part["prompt_projector"](x, prompt_id.long())
        if "last" in self.part:
            x = x.transpose(1, 2)
        caches = new.cache_last_channel.transpose(0, 1), new.cache_last_time.transpose(0, 1)
        return (x, lengths.int(), *caches, new.cache_last_channel_len.int())


def shard_graph(
    network: Network,
    index: int,
    att_context: tuple[int, int],
    frames: int,
    weights: Weights,
    activations: Activations,
) -> Graph:
    """Entry point of a shard of the encoder for calls of ``frames`` encoder frames."""
    config, left = network.config, att_context[0]
    layers = shard_layers(config.num_layers)[index]
    first, last = index == 0, index == SHARDS - 1
    parts: dict[str, nn.Module] = {"layers": network.encoder.layers[layers.start : layers.stop]}
    if first:
        parts["subsampling"] = network.encoder.subsampling
    if last:
        parts["last"] = nn.Identity()
        if config.has_prompt:
            parts["prompt_projector"] = network.prompt_projector
    part = prepared(nn.ModuleDict(parts), weights, activations)
    dtype = torch.float16 if activations == "fp16" else torch.float32
    tables = network.encoder.position_tables(left, frames)[layers.start : layers.stop]
    tables = [table.contiguous().to(dtype) for table in tables]
    rows = UNIFORM_HISTORY + SUBSAMPLING_FACTOR * frames
    shape = (1, config.num_mel_bins, rows) if first else (1, frames, config.hidden_size)
    channel = torch.zeros(1, len(layers), left, config.hidden_size, dtype=dtype)
    time = torch.zeros(1, len(layers), config.hidden_size, config.conv_kernel_size - 1, dtype=dtype)
    inputs = {
        "mel" if first else "hidden": torch.zeros(shape, dtype=dtype),
        "length": torch.tensor([rows if first else frames], dtype=torch.int32),
        **dict(zip(graphs.UNIFORM_CACHES, (channel, time, torch.zeros(1, dtype=torch.int32)), strict=True)),
    }
    if config.has_prompt:
        inputs["prompt_id"] = torch.zeros(1, dtype=torch.int32)
    outputs = ("encoded" if last else "hidden_out", "length_out", *graphs.out(graphs.UNIFORM_CACHES))
    return Graph(_Shard(part, tables, att_context, network), inputs, outputs)
