"""Export to ONNX: the reference network as the three graphs of `nemostream.runtimes.onnx_graphs`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from nemostream.checkpoints.bundle import MANIFEST, TOKENS, Manifest
from nemostream.config import SUBSAMPLING_FACTOR
from nemostream.errors import BackendError, CheckpointError
from nemostream.export.manifest import write_manifest
from nemostream.export.onnx_file import Axes, Weights, check_packages, write_graph
from nemostream.model.conformer import LayerPast
from nemostream.model.network import Network
from nemostream.model.subsampling import SubsamplingState
from nemostream.runtimes import onnx_graphs as graphs
from nemostream.text.tokenizer import Tokenizer

FP16_MAX = 65504.0
_POSITIONAL = ("bias_u", "bias_v")  # matrices by shape, but added, not multiplied: they stay fp32


def export_onnx(
    network: Network,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    source: str,
    source_revision: str | None = None,
    weights: Weights = "fp32",
    max_frames: int = 112,
) -> Manifest:
    """Write a bundle that `nemostream.runtimes.onnx.OnnxRuntime` loads.

    Args:
        network: the model, on the CPU in fp32.
        tokenizer: its pieces.
        folder: where to write; made if it does not exist. An earlier bundle there is replaced.
        source: path or id of the checkpoint, for the manifest.
        source_revision: its commit on the hub.
        weights: "fp32", or "fp16" to store matrices in half the bytes; computation is in fp32 either way.
        max_frames: most encoder frames that one call may produce.

    Raises:
        BackendError: if a package for exporting is missing, or an argument makes no sense.
        CheckpointError: if a weight is too large for fp16.
    """
    config = network.config
    largest = max(right for _, right in config.att_context_sizes) + 1
    if max_frames < largest:
        raise BackendError(
            f"max_frames is {max_frames}; the model needs chunks of {largest} frames at least."
        )
    if weights not in get_args(Weights):
        raise BackendError(
            f"Weights cannot be stored as {weights!r}; use one of {', '.join(get_args(Weights))}."
        )
    check_packages()
    if weights == "fp16":
        network = half_precision_weights(network)
    training = network.training
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    left = max(1, *(left for left, _ in config.att_context_sizes))
    written = [TOKENS]
    tokenizer.save_tokens_txt(folder / TOKENS)
    with torch.no_grad():
        written += _export_encoder(network, left, max_frames, folder, weights)
        written += _export_predictor(network, folder, weights)
        written += _export_joint(network, folder, weights)
    network.train(training)
    return write_manifest(
        folder,
        config=config,
        runtime="onnx",
        framing="native",
        max_frames=max_frames,
        weights=weights,
        source=source,
        source_revision=source_revision,
        files=written,
    )


def half_precision_weights(network: Network) -> Network:
    """Return a copy whose matrices, kernels and embeddings are rounded to fp16 (and are still fp32 tensors).

    Raises:
        CheckpointError: if a weight is too large for fp16.
    """
    rounded = copy.deepcopy(network)
    for name, parameter in rounded.named_parameters():
        if parameter.ndim < 2 or name.endswith(_POSITIONAL):
            continue
        if (peak := float(parameter.detach().abs().max())) > FP16_MAX:
            raise CheckpointError(f"{name} has a value of {peak:g}, too large for fp16; use fp32 weights.")
        parameter.data = parameter.data.half().float()
    return rounded


class _EncoderStep(nn.Module):
    """`Encoder.step`, prompt and projection, with the position tables baked in."""

    def __init__(self, network: Network, left: int, max_frames: int) -> None:
        super().__init__()
        self.network = network
        self.first_distance = left + max_frames  # one more than the distance of the tables' first row
        for index, table in enumerate(network.encoder.position_tables(left, max_frames)):
            self.register_buffer(f"positions_{index}", table.contiguous())

    def forward(
        self,
        mel: Tensor,
        mel_lengths: Tensor,
        att_context: Tensor,
        seen: Tensor,
        stem: Sequence[Tensor],
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        gated: Sequence[Tensor],
        prompt_ids: Tensor,
    ) -> tuple[Tensor, ...]:
        frames, past = mel.shape[1] // SUBSAMPLING_FACTOR, keys[0].shape[1]
        skipped = self.first_distance - past - frames
        tables = [
            getattr(self, f"positions_{index}")[:, skipped : skipped + past + 2 * frames]
            for index in range(len(keys))
        ]
        layers = [LayerPast(*carried) for carried in zip(keys, values, gated, strict=True)]
        x, lengths, new_stem, new = self.network.encoder.step(
            mel, mel_lengths, seen, layers, SubsamplingState(*stem), att_context, tables
        )
        kept = [getattr(layer, kind) for kind in graphs.KINDS for layer in new]
        return (self.network.project(x, prompt_ids), lengths, *new_stem, *kept)


class _PredictorStep(nn.Module):
    """The predictor for one token a row."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.decoder = network.decoder

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        predicted, (new_h, new_c) = self.decoder(tokens[:, None], (h, c))
        return predicted[:, 0], new_h, new_c


class _JointStep(nn.Module):
    """The joint for a window of frames under one predictor output a row."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.joint = network.joint

    def forward(self, encoded: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.joint(encoded, predicted[:, None])
        return logits.argmax(dim=2), logits


def _export_encoder(
    network: Network, left: int, max_frames: int, folder: Path, weights: Weights
) -> list[str]:
    config, encoder = network.config, network.encoder
    layers, batch, frames = config.num_layers, 2, 3  # neither 0 nor 1, which exporters like to take as fixed
    state = encoder.initial_state(batch, left)
    inputs: dict[str, Any] = {
        "mel": torch.zeros(batch, SUBSAMPLING_FACTOR * frames, config.num_mel_bins),
        "mel_lengths": torch.full((batch,), SUBSAMPLING_FACTOR * frames),
        "att_context": torch.tensor([config.default_att_context] * batch),
        "frames": state.frames,
        "stem": list(state.subsampling),
        **{kind: list(getattr(state, kind)) for kind in graphs.KINDS},
        "prompt_ids": torch.zeros(batch, dtype=torch.int64),
    }
    names = ["mel", "mel_lengths", "att_context", "frames", *graphs.stem_inputs()]
    names += [name for kind in graphs.KINDS for name in graphs.layer_inputs(kind, layers)]
    if config.has_prompt:
        names.append("prompt_ids")
    new = [name for kind in graphs.KINDS for name in graphs.layer_outputs(kind, layers)]
    outputs = ["encoded", "lengths", *graphs.stem_outputs(), *new]
    axes: Axes = {name: {0: "batch"} for name in (*names, *outputs)}
    axes["mel"][1] = "rows"
    for name in ("encoded", *new):
        axes[name][1] = "new_frames"
    for kind in ("keys", "values"):
        for name in graphs.layer_inputs(kind, layers):
            axes[name][1] = "past"
    step = _EncoderStep(network, left, max_frames)
    return write_graph(step, tuple(inputs.values()), names, outputs, axes, folder / graphs.ENCODER, weights)


def _export_predictor(network: Network, folder: Path, weights: Weights) -> list[str]:
    names, outputs = ["tokens", "h", "c"], ["predicted", "new_h", "new_c"]
    state = {1: "batch"}
    axes: Axes = {"tokens": {0: "batch"}, "predicted": {0: "batch"}}
    axes |= dict.fromkeys(("h", "c", "new_h", "new_c"), state)
    arguments = (torch.zeros(2, dtype=torch.int64), *network.initial_predictor_state(2))
    return write_graph(
        _PredictorStep(network), arguments, names, outputs, axes, folder / graphs.PREDICTOR, weights
    )


def _export_joint(network: Network, folder: Path, weights: Weights) -> list[str]:
    names, outputs = ["encoded", "predicted"], ["tokens", "logits"]
    window = {0: "batch", 1: "window"}
    axes: Axes = {"encoded": window, "predicted": {0: "batch"}, "tokens": window, "logits": window}
    width = network.config.joint_hidden_size
    arguments = (torch.zeros(2, 3, width), torch.zeros(2, width))
    return write_graph(_JointStep(network), arguments, names, outputs, axes, folder / graphs.JOINT, weights)


def _clear(folder: Path) -> None:
    """Remove what an earlier export left, so that a bundle is never half old."""
    for name in (MANIFEST, TOKENS, *graphs.GRAPHS, *(graph + graphs.DATA_SUFFIX for graph in graphs.GRAPHS)):
        (folder / name).unlink(missing_ok=True)
