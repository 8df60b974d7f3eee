"""The encoder's graphs as torch modules, with positional inputs and outputs in the order of the contract.

The layers are the reference's own. What differs from `nemostream.model.uniform` is how caches move on: by all
N frames of a call, since a slice at a fixed place stays on the Neural Engine and a gather does not. A call
that is not full is its stream's last, so its caches are never read.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nemostream.model.attention import chunk_mask
from nemostream.model.network import Network
from nemostream.model.uniform import uniform_stem

StepOutput = tuple[Tensor, Tensor, Tensor, Tensor]  # frames, cache of channels, cache of time, filled


class Layers(nn.Module):
    """Some of the layers in a row, caches [layers, 1, L, D] and [layers, 1, D, 8] (as NeMo has them)."""

    def __init__(self, network: Network, layers: range, att_context: tuple[int, int], frames: int) -> None:
        super().__init__()
        left = att_context[0]
        self.layers = network.encoder.layers[layers.start : layers.stop]
        self.left = left
        self.register_buffer("att_context", torch.tensor([att_context]))
        tables = network.encoder.position_tables(left, frames)
        for index, layer in enumerate(layers):
            self.register_buffer(f"positions_{index}", tables[layer].contiguous())

    def forward(
        self, x: Tensor, lengths: Tensor, channel: Tensor, time: Tensor, filled: Tensor
    ) -> StepOutput:
        """x [1, N, D], lengths [1], the caches and how many frames the first holds [1] -> `StepOutput`."""
        frames = x.shape[1]
        mask = chunk_mask(frames, self.left, self.att_context, filled, lengths)  # type: ignore[arg-type]
        real = (torch.arange(frames) < lengths[:, None]).unsqueeze(2).to(x.dtype)
        channels, times = [], []
        for index, layer in enumerate(self.layers):
            past = layer.self_attn.project_past(channel[index])  # type: ignore[union-attr, operator]
            gated = time[index].transpose(1, 2)
            x, new = layer(x, *past, gated, mask, getattr(self, f"positions_{index}"), real)
            channels.append(torch.cat([channel[index], new.attention_input], dim=1)[:, frames:])
            times.append(torch.cat([gated, new.gated], dim=1)[:, frames:].transpose(1, 2))
        filled = (filled + frames).clamp(max=self.left)
        return x, torch.stack(channels), torch.stack(times), filled


class SingleEncoder(nn.Module):
    """Layout "single": a full window and NeMo's caches, layers first; no length, no prompt."""

    def __init__(self, network: Network, att_context: tuple[int, int], frames: int) -> None:
        super().__init__()
        self.subsampling, self.config = network.encoder.subsampling, network.config
        self.layers = Layers(network, range(network.config.num_layers), att_context, frames)

    def forward(self, mel: Tensor, channel: Tensor, time: Tensor, filled: Tensor) -> StepOutput:
        """Window [1, F, 9 + 8 N] and caches -> frames [1, D, N] and caches."""
        x, lengths = uniform_stem(
            self.subsampling, mel.transpose(1, 2), torch.tensor([mel.shape[2]]), self.config
        )
        x, channel, time, filled = self.layers(x, lengths, channel, time, filled)
        return x.transpose(1, 2), channel, time, filled


class EnglishEncoder(nn.Module):
    """Layout "english": NeMo's export, caches with the batch first, and a length."""

    def __init__(self, network: Network, att_context: tuple[int, int], frames: int) -> None:
        super().__init__()
        self.subsampling, self.config = network.encoder.subsampling, network.config
        self.layers = Layers(network, range(network.config.num_layers), att_context, frames)
        if network.config.has_prompt:
            self.prompt_projector = network.prompt_projector

    def forward(
        self, mel: Tensor, length: Tensor, channel: Tensor, time: Tensor, filled: Tensor, *prompt: Tensor
    ) -> tuple[Tensor, ...]:
        """Window, its length, caches, slot if the model has prompts -> frames, their valid number, caches."""
        x, lengths = uniform_stem(self.subsampling, mel.transpose(1, 2), length, self.config)
        x, channel, time, filled = self.layers(
            x, lengths, channel.transpose(0, 1), time.transpose(0, 1), filled
        )
        if prompt:
            x = self.prompt_projector(x, *prompt)
        return x.transpose(1, 2), lengths, channel.transpose(0, 1), time.transpose(0, 1), filled


class PreEncode(nn.Module):
    """Layout "sharded": the stem. Window and its length in, frames [1, N, D] and their valid number out."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.subsampling, self.config = network.encoder.subsampling, network.config

    def forward(self, mel: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Window and its length -> frames and their valid number."""
        return uniform_stem(self.subsampling, mel.transpose(1, 2), length, self.config)


class Shard(nn.Module):
    """Layout "sharded": some layers; after the last ones the prompt, and the frames as [1, D, N].

    All shards take the slot of the language, so that a host can call them all alike.
    """

    def __init__(self, network: Network, layers: range, att_context: tuple[int, int], frames: int) -> None:
        super().__init__()
        self.layers = Layers(network, layers, att_context, frames)
        self.last = layers.stop == network.config.num_layers
        if self.last and network.config.has_prompt:
            self.prompt_projector = network.prompt_projector

    def forward(
        self, x: Tensor, length: Tensor, channel: Tensor, time: Tensor, filled: Tensor, *prompt: Tensor
    ) -> tuple[Tensor, ...]:
        """Frames [1, N, D], valid number, caches, slot if the model has prompts -> frames, number, caches."""
        x, channel, time, filled = self.layers(
            x, length, channel.transpose(0, 1), time.transpose(0, 1), filled
        )
        if self.last:
            if prompt:
                x = self.prompt_projector(x, *prompt)
            x = x.transpose(1, 2)
        length = length.clamp(max=x.shape[2 if self.last else 1])  # an output can't be an input as it is
        return x, length, channel.transpose(0, 1), time.transpose(0, 1), filled
