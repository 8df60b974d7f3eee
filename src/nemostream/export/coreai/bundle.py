"""``convert --to coreai``: a checkpoint as a bundle of Core AI graphs, in one of two layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from nemostream.checkpoints.bundle import TOKENS, Manifest
from nemostream.config import FRAME_MS, ModelConfig
from nemostream.errors import BackendError, ContextError
from nemostream.export.coreai.assets import Graph, converter_package, write_asset
from nemostream.export.coreai.decoder import decoder_joint_graphs, joint_graph, predict_graph
from nemostream.export.coreai.host import write_build_script, write_host_files
from nemostream.export.coreai.precision import Activations, Weights, activations_for
from nemostream.export.coreai.sharded import shard_graph
from nemostream.export.coreai.six import conformer_graph, stem_graphs
from nemostream.export.manifest import write_manifest
from nemostream.model.network import Network
from nemostream.runtimes import coreai_graphs as graphs
from nemostream.runtimes.coreai_graphs import Layout
from nemostream.runtimes.coreml_contract import SHARDS
from nemostream.runtimes.protocol import Framing
from nemostream.text.tokenizer import Tokenizer

SHARDED_CONTEXT = (42, 13)  # of the published tiers
TIERS = (560, 1120, 2240, 4480)  # ms of audio per call of the layout "sharded"
DEFAULT_TIER = 2240


def export_coreai(
    network: Network,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    source: str,
    source_revision: str | None = None,
    layout: Layout = "six",
    weights: Weights = "fp16",
    activations: Activations | None = None,
    latency: int | None = None,
) -> Manifest:
    """Write a bundle that `nemostream.runtimes.coreai.CoreAiRuntime` loads.

    Args:
        network: the model, on the CPU in fp32.
        tokenizer: its pieces.
        folder: where to write; made if it does not exist, and should be empty.
        source: path or id of the checkpoint, for the manifest.
        source_revision: its commit on the hub.
        layout: "six" or "sharded".
        weights: of the encoder; the decoder is fp32.
        activations: in what the encoder computes with int8 weights; None is fp16.
        latency: milliseconds; of "six" the algorithmic latency, of "sharded" the audio per call, one of
            `TIERS`.

    Raises:
        BackendError: if a package is missing, an argument makes no sense, or the model has too few layers.
        ContextError: if the model can't stream at that latency.
        CheckpointError: if a weight is too large for fp16.
    """
    if layout not in get_args(Layout):
        raise BackendError(
            f"Unknown Core AI layout {layout!r}; the valid ones are: {', '.join(get_args(Layout))}."
        )
    computes = activations_for(weights, activations)
    converter_package()
    att_context, frames = call_size(network.config, layout, latency)
    needed = 2 if layout == "six" else SHARDS
    if network.config.num_layers < needed:
        raise BackendError(
            f"The layout {layout} needs {needed} layers at least; this model has {network.config.num_layers}."
        )
    framing: Framing = "native" if layout == "six" else "uniform"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_tokens_txt(folder / TOKENS)
    written = [TOKENS]
    for name, entry_points in graph_modules(network, layout, att_context, frames, weights, computes):
        place = graphs.asset_path(framing, name)
        description = f"{name} of {source}, made by nemostream"
        written += [f"{place}/{file}" for file in write_asset(folder / place, entry_points, description)]
        del entry_points  # its copy of the weights, before the next one is made
    config = dataclasses.replace(network.config, att_context_sizes=(att_context,))
    if layout == "sharded":
        written += write_host_files(folder, config, tokenizer, frames)
    written += write_build_script(folder, framing, weights)
    return write_manifest(
        folder,
        config=config,
        runtime="coreai",
        framing=framing,
        max_frames=frames,
        weights=weights,
        source=source,
        source_revision=source_revision,
        files=written,
        layout=layout,
    )


def call_size(config: ModelConfig, layout: Layout, latency: int | None) -> tuple[tuple[int, int], int]:
    """The (left, right) context and the encoder frames of every call.

    Raises:
        ContextError: if there is no such latency in the layout.
    """
    if layout == "six":
        context = config.default_att_context if latency is None else config.context_for_latency(latency)
        if context[0] < 1:
            raise ContextError("Core AI graphs need left context; choose a latency that has some.")
        return context, context[1] + 1
    if latency not in (None, *TIERS):
        raise ContextError(
            f"The layout sharded has calls of {', '.join(map(str, TIERS))} ms; {latency} ms is none of them."
        )
    return config.resolve_att_context(SHARDED_CONTEXT), (latency or DEFAULT_TIER) // FRAME_MS


def graph_modules(
    network: Network,
    layout: Layout,
    att_context: tuple[int, int],
    frames: int,
    weights: Weights,
    activations: Activations,
) -> Iterator[tuple[str, list[Graph]]]:
    """Name and entry points of every graph."""
    if layout == "six":
        return _six(network, att_context, weights, activations)
    return _sharded(network, att_context, frames, weights, activations)


def _six(
    network: Network, att_context: tuple[int, int], weights: Weights, activations: Activations
) -> Iterator[tuple[str, list[Graph]]]:
    layers, frames = network.config.num_layers, att_context[1] + 1
    yield graphs.PRE_FIRST, stem_graphs(network, frames, True, activations)
    yield graphs.PRE, stem_graphs(network, frames, False, activations)
    half = graphs.first_half(layers)
    for name, part in ((graphs.CONFORMER_A, half), (graphs.CONFORMER_B, range(half.stop, layers))):
        yield name, [conformer_graph(network, part, att_context, weights, activations)]
    yield graphs.PREDICT, [predict_graph(network)]
    yield graphs.JOINT, [joint_graph(network, None), joint_graph(network, frames, graphs.CHUNK)]


def _sharded(
    network: Network, att_context: tuple[int, int], frames: int, weights: Weights, activations: Activations
) -> Iterator[tuple[str, list[Graph]]]:
    for index in range(SHARDS):
        graph = shard_graph(network, index, att_context, frames, weights, activations)
        yield graphs.shard(index, weights), [graph]
    yield graphs.DECODER_JOINT, decoder_joint_graphs(network, frames)
