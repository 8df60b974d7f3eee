"""The encoder of a Core AI bundle, one stream after the other: what its layout keeps between chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from nemostream.config import ModelConfig
from nemostream.framing import PHANTOM_MEL_FRAMES, UNIFORM_HISTORY
from nemostream.runtimes import coreai_graphs as graphs
from nemostream.runtimes.coreai_assets import Array, CoreAiAssets
from nemostream.runtimes.protocol import Float32


@dataclass
class EncoderState:
    """What a stream keeps: encoder frames so far, and inputs of the next call by graph and name."""

    frames: int = 0
    caches: dict[str, dict[str, Array]] = field(default_factory=dict)


class Encoder(Protocol):
    """An encoder without state of its own.

    Attributes:
        last_stage: the stage, see `step`, that comes out of its last graph.
    """

    last_stage: str

    def begin(self) -> EncoderState:
        """State of a stream that has not begun."""

    def step(
        self, state: EncoderState, mel: Float32, length: int, prompt_id: int
    ) -> tuple[dict[str, Float32], int]:
        """Run one call and bring the state up to date.

        Args:
            state: of the stream.
            mel: [M, F] rows as `nemostream.framing` lays them out.
            length: rows up to the last real one.
            prompt_id: language slot.

        Returns:
            stages by the names of `nemostream.verify.stages`, [N, ...] each, "projection" among them, which
            the joint takes; and valid frames.
        """


class SixEncoder:
    """`Encoder` of the layout "six"."""

    last_stage = "projection"

    def __init__(self, assets: CoreAiAssets, config: ModelConfig, att_context: tuple[int, int]) -> None:
        self._assets, self._config = assets, config
        self._left, self._frames = att_context[0], att_context[1] + 1

    def begin(self) -> EncoderState:
        """See `Encoder.begin`."""
        caches = {}
        for graph in (graphs.CONFORMER_A, graphs.CONFORMER_B):
            inputs, _ = self._assets.signature(graph)
            caches[graph] = {name: np.zeros(*inputs[name]) for name in graphs.LAYER_CACHES}
        return EncoderState(caches=caches)

    def step(
        self, state: EncoderState, mel: Float32, length: int, prompt_id: int
    ) -> tuple[dict[str, Float32], int]:
        """See `Encoder.step`."""
        first, valid = state.frames == 0, -(-length // 8)
        stem = graphs.PRE_FIRST if first else graphs.PRE
        lead = PHANTOM_MEL_FRAMES if first else 0  # rows that the first graph adds itself
        inputs: dict[str, Array] = {"mel": mel[None, lead:], **state.caches.get(graphs.PRE, {})}
        entry = graphs.MAIN
        if length < len(mel):
            entry = graphs.LAST
            inputs["mel_length"] = np.array([length - lead])
        result = self._assets.call(stem, inputs, entry)
        state.caches[graphs.PRE] = _carried(result, graphs.STEM_CACHES)
        x = embeds = result["embeds"]
        mask = self._hidden_keys(state.frames, valid)
        outputs = {}
        for graph in (graphs.CONFORMER_A, graphs.CONFORMER_B):
            inputs = {"x": x, "neg_mask": mask, **state.caches[graph]}
            if graph == graphs.CONFORMER_B and self._config.has_prompt:
                inputs["one_hot"] = np.eye(1, self._config.num_prompts, prompt_id, np.float32)
            result = self._assets.call(graph, inputs)
            state.caches[graph] = _carried(result, graphs.LAYER_CACHES)
            x = outputs[graph] = result["x_out" if graph == graphs.CONFORMER_A else "enc_proj"]
        state.frames += self._frames
        half = graphs.first_half(self._config.num_layers).stop
        stages = {
            "pre_encode": embeds,
            f"layers.{half - 1}": outputs[graphs.CONFORMER_A],
            "projection": x,
        }
        return {name: value[0].astype(np.float32) for name, value in stages.items()}, valid

    def _hidden_keys(self, seen: int, valid: int) -> Float32:
        """[1, 1, N, L + N]: what is not filled yet, and what lies after the stream's end."""
        mask = np.zeros((1, 1, self._frames, self._left + self._frames), np.float32)
        mask[..., : max(0, self._left - seen)] = graphs.HIDDEN_KEY
        mask[..., self._left + valid :] = graphs.HIDDEN_KEY
        return mask


class ShardedEncoder:
    """`Encoder` of the layout "sharded"."""

    def __init__(self, assets: CoreAiAssets, config: ModelConfig, shards: tuple[str, ...]) -> None:
        self._assets, self._config, self._shards = assets, config, shards
        self.last_stage = "prompt" if config.has_prompt else f"layers.{config.num_layers - 1}"

    def begin(self) -> EncoderState:
        """See `Encoder.begin`."""
        caches = {}
        for shard in self._shards:
            inputs, _ = self._assets.signature(shard)
            caches[shard] = {name: np.zeros(*inputs[name]) for name in graphs.UNIFORM_CACHES}
        return EncoderState(caches=caches)

    def step(
        self, state: EncoderState, mel: Float32, length: int, prompt_id: int
    ) -> tuple[dict[str, Float32], int]:
        """See `Encoder.step`."""
        stages: dict[str, Float32] = {}
        inputs: dict[str, Array] = {"mel": mel.T[None], "length": np.array([length])}
        layers = 0
        for shard in self._shards:
            last = shard == self._shards[-1]
            if self._config.has_prompt:
                inputs["prompt_id"] = np.array([prompt_id])
            result = self._assets.call(shard, {**inputs, **state.caches[shard]})
            layers += result["cache_channel_out"].shape[1]
            state.caches[shard] = _carried(result, graphs.UNIFORM_CACHES)
            if not last:
                stages[f"layers.{layers - 1}"] = result["hidden_out"][0].astype(np.float32)
                inputs = {"hidden": result["hidden_out"], "length": result["length_out"]}
        encoded = result["encoded"]
        stages[self.last_stage] = encoded[0].T.astype(np.float32)
        projected = self._assets.call(graphs.DECODER_JOINT, {"encoder": encoded}, graphs.PROJECT)
        stages["projection"] = projected["enc_proj"][0]
        state.frames += len(stages["projection"])
        return stages, -(-(length - UNIFORM_HISTORY) // 8)


def _carried(result: dict[str, Array], names: tuple[str, ...]) -> dict[str, Array]:
    """Outputs that are inputs of the next call, by their input names."""
    return {name: result[made] for name, made in zip(names, graphs.out(names), strict=True)}
