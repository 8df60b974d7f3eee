"""``convert --to coreml``: a checkpoint as a bundle of CoreML graphs, in one of four layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torch import nn

from nemostream.checkpoints.bundle import TOKENS, Manifest
from nemostream.config import FRAME_MS, SUBSAMPLING_FACTOR, ModelConfig
from nemostream.errors import BackendError, CheckpointError, ContextError
from nemostream.export.coreml import decoder, encoder
from nemostream.export.coreml.convert import Target, converter_package, write_package
from nemostream.export.coreml.host import write_config, write_metadata, write_native_weights
from nemostream.export.coreml.preprocessor import Preprocessor
from nemostream.export.coreml.weights import Weights
from nemostream.export.manifest import write_manifest
from nemostream.model.network import Network
from nemostream.runtimes.coreml_contract import LAYOUTS, SHARDS, Contract, Layout, contract, shard_layers
from nemostream.text.tokenizer import Tokenizer

TIERS = (560, 1120, 2240, 4480)  # ms of audio per call of the layouts "sharded" and "watch"
DEFAULT_TIER = 2240
_TIER_CONTEXT = (42, 13)  # of all tiers
_RIGHT_CONTEXTS = {"single": 13, "english": 6}  # of the published bundles
_FP16_MAX = 65504.0
_TARGETS: dict[Layout, Target] = {"single": "iOS17", "english": "iOS17", "sharded": "iOS18", "watch": "iOS18"}


def call_size(
    config: ModelConfig,
    layout: Layout,
    att_context: tuple[int, int] | None = None,
    chunk: int | None = None,
) -> tuple[tuple[int, int], int]:
    """The (left, right) context and the encoder frames of every call.

    Args:
        config: the model.
        layout: one of `LAYOUTS`.
        att_context: None is that of the published bundle of this layout, as far as the model has it.
        chunk: new mel frames of a call; None is one attention chunk, or the default tier.

    Raises:
        ContextError: if the context has no past, or the calls are not whole chunks of attention (or a tier).
    """
    if att_context is None:
        att_context = _published_context(config, layout)
    left, right = config.resolve_att_context(att_context)
    if left < 1:
        raise ContextError("CoreML bundles need left context; choose one of 1 frame or more.")
    whole = SUBSAMPLING_FACTOR * (right + 1)
    if layout in ("sharded", "watch"):
        chunks = [tier // FRAME_MS * SUBSAMPLING_FACTOR for tier in TIERS]
        chunk = DEFAULT_TIER // FRAME_MS * SUBSAMPLING_FACTOR if chunk is None else chunk
        if chunk not in chunks or (chunk % whole and whole % chunk):
            raise ContextError(
                f"A call of {chunk} mel frames was asked for; the layout {layout} has "
                f"{', '.join(map(str, chunks))} ({', '.join(map(str, TIERS))} ms), of which a context of "
                f"[{left}, {right}] takes whole chunks of {whole} mel frames or whole parts of one."
            )
    elif chunk is None:
        chunk = whole
    elif chunk < 1 or chunk % whole:
        raise ContextError(
            f"A call of {chunk} mel frames was asked for; with a context of [{left}, {right}] it has to be a "
            f"multiple of {whole}."
        )
    return (left, right), chunk // SUBSAMPLING_FACTOR


def export_coreml(
    network: Network,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    source: str,
    source_revision: str | None = None,
    layout: Layout = "single",
    weights: Weights = "fp16",
    att_context: tuple[int, int] | None = None,
    chunk: int | None = None,
) -> Manifest:
    """Write a bundle that the CoreML and MIL runtimes load.

    Args:
        network: the model, on the CPU in fp32.
        tokenizer: its pieces.
        folder: where to write; made if it does not exist, and should be empty.
        source: path or id of the checkpoint, for the manifest.
        source_revision: its commit on the hub.
        layout: one of `LAYOUTS`, see `nemostream.runtimes.coreml_contract`.
        weights: of the encoder; the decoder's are fp16.
        att_context: see `call_size`.
        chunk: see `call_size`.

    Raises:
        BackendError: if coremltools is missing, or the model has too few layers for the layout.
        ContextError: see `call_size`.
        CheckpointError: if a weight is not finite, or too large for fp16.
    """
    if layout not in LAYOUTS:
        raise BackendError(f"Unknown CoreML layout {layout!r}; the valid ones are: {', '.join(LAYOUTS)}.")
    converter_package()
    if layout in ("sharded", "watch") and network.config.num_layers < SHARDS:
        raise BackendError(
            f"The layout {layout} needs {SHARDS} layers at least; this model has {network.config.num_layers}."
        )
    att_context, frames = call_size(network.config, layout, att_context, chunk)
    config = dataclasses.replace(network.config, att_context_sizes=(att_context,))
    planned = contract(config, layout, att_context, frames)
    _check_weights(network)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_tokens_txt(folder / TOKENS)
    written = [TOKENS]
    for name, module, kind in graph_modules(network, planned):
        path = folder / planned.graphs[name].path
        path.parent.mkdir(parents=True, exist_ok=True)
        write_package(
            module,
            planned.graphs[name],
            path,
            target=_TARGETS[layout],
            weights=weights if kind == "encoder" else "fp16",
            precision="fp32" if kind == "preprocessor" else "fp16",
            description=f"{name} of {source}, made by nemostream",
        )
        written += [file.relative_to(folder).as_posix() for file in path.rglob("*") if file.is_file()]
    if layout == "english":
        written += write_config(folder, config, planned, weights)
    if layout in ("sharded", "watch"):
        written += write_metadata(folder, config, tokenizer, planned)
    if layout == "sharded":
        written += write_native_weights(folder, network)
    return write_manifest(
        folder,
        config=config,
        runtime="coreml",
        framing="uniform",
        max_frames=frames,
        weights=weights,
        source=source,
        source_revision=source_revision,
        files=written,
        layout=layout,
    )


def _check_weights(network: Network) -> None:
    for name, tensor in network.state_dict().items():
        peak = float(tensor.abs().max())
        if not peak <= _FP16_MAX:
            raise CheckpointError(
                f"{name} has a value of {peak:g}, and CoreML graphs compute in fp16; convert to ONNX instead."
            )


def _published_context(config: ModelConfig, layout: Layout) -> tuple[int, int]:
    if layout in ("sharded", "watch"):
        return _TIER_CONTEXT
    right = _RIGHT_CONTEXTS[layout]
    return next((pair for pair in config.att_context_sizes if pair[1] == right), config.default_att_context)


def graph_modules(
    network: Network, planned: Contract
) -> Iterator[tuple[str, nn.Module, Literal["encoder", "decoder", "preprocessor"]]]:
    """Name and module of every graph, and what kind it is."""
    att_context, frames = planned.att_context, planned.frames
    if planned.layout == "single":
        yield "encoder", encoder.SingleEncoder(network, att_context, frames), "encoder"
        yield "prompt_projection", decoder.PromptProjection(network), "decoder"
    elif planned.layout == "english":
        yield "encoder", encoder.EnglishEncoder(network, att_context, frames), "encoder"
        yield "decoder", decoder.EnglishDecoder(network), "decoder"
        return
    else:
        samples = planned.graphs["preprocessor"].inputs[0].shape[1]
        yield "preprocessor", Preprocessor(network.config, samples), "preprocessor"
        yield "encoder_pre_encode", encoder.PreEncode(network), "encoder"
        for index, layers in enumerate(shard_layers(network.config.num_layers)):
            yield f"encoder_shard_{index}", encoder.Shard(network, layers, att_context, frames), "encoder"
        yield "decoder_joint_argmax", decoder.ArgmaxDecoder(network), "decoder"
    yield "decoder", decoder.Predictor(network), "decoder"
    if planned.layout != "watch":
        yield "joint_noencproj_batched", decoder.WindowJoint(network), "decoder"
