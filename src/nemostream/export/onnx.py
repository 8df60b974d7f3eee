"""Export to ONNX: the reference network as the three graphs of `nemostream.runtimes.onnx_graphs`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import get_args

import torch

from nemostream.checkpoints.bundle import MANIFEST, TOKENS, Manifest
from nemostream.errors import BackendError
from nemostream.export.graph import onnx_package
from nemostream.export.linear import Weights, as_half
from nemostream.export.manifest import write_manifest
from nemostream.export.onnx_decoder_graphs import export_joint, export_predictor
from nemostream.export.onnx_encoder import export_encoder
from nemostream.model.network import Network
from nemostream.runtimes import onnx_graphs as graphs
from nemostream.text.tokenizer import Tokenizer

_FP32 = ("bias_u", "bias_v", "relative_k_proj.weight")  # added, or only used to compute the position tables


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
        weights: how matrices are stored, see `nemostream.export.linear`.
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
    onnx_package()
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    left = max(1, *(left for left, _ in config.att_context_sizes))
    written = [TOKENS]
    tokenizer.save_tokens_txt(folder / TOKENS)
    with torch.no_grad():
        written += export_encoder(network, folder, weights, left, max_frames)
        written += export_predictor(config, network.decoder, folder / graphs.PREDICTOR, weights)
        written += export_joint(config, network.joint, folder / graphs.JOINT, weights)
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
    """Return a copy whose weights are those of an fp16 bundle, rounded (and still fp32 tensors).

    Raises:
        CheckpointError: if a weight is too large for fp16.
    """
    rounded = copy.deepcopy(network)
    for name, parameter in rounded.named_parameters():
        if parameter.ndim >= 2 and not name.endswith(_FP32):
            parameter.data = torch.from_numpy(as_half(name, parameter.detach().numpy())).float()
    return rounded


def _clear(folder: Path) -> None:
    """Remove what an earlier export left, so that a bundle is never half old."""
    for name in (MANIFEST, TOKENS, *graphs.GRAPHS, *(graph + graphs.DATA_SUFFIX for graph in graphs.GRAPHS)):
        (folder / name).unlink(missing_ok=True)
