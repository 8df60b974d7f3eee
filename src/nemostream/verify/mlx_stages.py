"""The inner stages of the MLX network: its modules are wrapped, and what goes in and out of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.runtimes.mlx_network.streams import EncoderStreams
from nemostream.runtimes.mlx_network.weights import PRECISIONS
from nemostream.runtimes.protocol import Float32, Int64
from nemostream.verify.stages import PRE_ENCODE, PROJECTION, PROMPT, Arrays

_NORM_INPUTS = {  # norm -> stage that goes into it
    "norm_self_att": "feed_forward1",
    "norm_conv": "self_attn",
    "norm_feed_forward2": "conv",
    "norm_out": "feed_forward2",
}


class MlxStages:
    """`nemostream.verify.stages.InnerStages` of MLX; all stages can be seen.

    Args:
        checkpoint: the model.
        left_context: room for attention context.
        max_frames: most encoder frames of a call.
        precision: a name in `PRECISIONS`.
    """

    def __init__(
        self, checkpoint: Checkpoint, left_context: int, max_frames: int, precision: str = "fp32"
    ) -> None:
        self._streams = _OpenedStreams(checkpoint, PRECISIONS[precision], left_context, max_frames)
        self._streams.watch()
        self._streams.resize(1)

    def start(self) -> None:
        """Begin a new stream."""
        self._streams.reset(0)

    def step(self, mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64) -> Arrays:
        """See `nemostream.verify.stages.InnerStages.step`."""
        encoded, _ = self._streams.encode([0], mel, mel_lengths, prompt_ids, att_context)
        frames = encoded.shape[1]
        # keys, values and gated frames come with those before the call
        seen = {stage: _array(array)[:, -frames:] for stage, array in self._streams.seen.items()}
        self._streams.seen.clear()
        return seen | {PROJECTION: encoded}


class _OpenedStreams(EncoderStreams):
    """The encoder, whose modules say what they see."""

    def watch(self) -> None:
        self.seen: dict[str, mx.array] = {}
        network, encoder = self._network, self._network.encoder
        encoder.subsampling = self._watched(encoder.subsampling, (PRE_ENCODE,))
        for index, layer in enumerate(encoder.layers):
            name = f"layers.{index}"
            for norm, stage in _NORM_INPUTS.items():
                setattr(layer, norm, self._watched(getattr(layer, norm), (), f"{name}.{stage}"))
            parts = (None, f"{name}.self_attn.keys", f"{name}.self_attn.values")
            layer.self_attn = self._watched(layer.self_attn, parts)
            layer.conv = self._watched(layer.conv, (None, f"{name}.conv.gated"))
            encoder.layers[index] = self._watched(layer, (name,))
        if "prompt_projector" in network:
            network.prompt_projector = self._watched(network.prompt_projector, (PROMPT,))

    def _watched(
        self, module: nn.Module, outputs: Sequence[str | None], entry: str | None = None
    ) -> _Watched:
        def see(inputs: tuple[Any, ...], output: Any) -> None:
            if entry is not None:
                self.seen[entry] = inputs[0]
            values = output if isinstance(output, tuple) else (output,)
            for stage, value in zip(outputs, values, strict=False):  # a module may return more
                if stage is not None:
                    self.seen[stage] = value

        return _Watched(module, see)


class _Watched(nn.Module):  # type: ignore[misc]
    """A module that tells what it was given and what it made of it."""

    def __init__(self, module: nn.Module, see: Callable[[tuple[Any, ...], Any], None]) -> None:
        super().__init__()
        self.module, self._see = module, see

    def __call__(self, *inputs: Any) -> Any:
        output = self.module(*inputs)
        self._see(inputs, output)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def _array(value: mx.array) -> Float32:
    array = np.array(value.astype(mx.float32))  # numpy has no bfloat16
    return array if array.ndim == 3 else array.reshape(array.shape[0], array.shape[1], -1)
