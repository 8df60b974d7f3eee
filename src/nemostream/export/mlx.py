"""Export to MLX: the folder of `nemostream.checkpoints.mlx_style`, with a decoder for each of its two forms.

``decoder.safetensors`` is for predictor and joint in MLX, ``decoder.onnx`` and ``joiner.onnx`` are for ONNX
Runtime on the CPU. Both hold the same weights, rounded the same way, so both forms give the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import nn

from nemostream.checkpoints.bundle import MANIFEST, TOKENS, Manifest
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.files import StoredDtype, read_safetensors
from nemostream.checkpoints.mlx_style import (
    CONFIG,
    DECODER_WEIGHTS,
    ENCODER,
    MEL_FILTERS,
    lossless_dtype,
    save_mlx_style,
)
from nemostream.checkpoints.onnx_decoder import DECODER, JOINER
from nemostream.errors import BackendError
from nemostream.export.graph import onnx_package
from nemostream.export.manifest import write_manifest
from nemostream.export.onnx_decoder_graphs import export_joint, export_predictor
from nemostream.model.network import Joint, Predictor

M = TypeVar("M", bound=nn.Module)

_DTYPES: dict[str, StoredDtype] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def export_mlx(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    source: str,
    source_revision: str | None = None,
    weights: str | None = None,
) -> Manifest:
    """Write a folder that `nemostream.runtimes.mlx.MlxRuntime` runs, with either decoder.

    Args:
        checkpoint: the model.
        folder: where to write; made if it does not exist.
        source: path or id of the checkpoint, for the manifest.
        source_revision: its commit on the hub.
        weights: how safetensors files hold them: "fp32", "fp16" or "bf16"; None is the smallest that keeps
            every bit of the checkpoint. The ONNX graphs are fp32, with numbers rounded alike.

    Raises:
        BackendError: if a package for exporting is missing, or ``weights`` is something else.
        CheckpointError: if a weight is too large for fp16, or a piece does not fit ``tokens.txt``.
    """
    if weights is None:
        dtype = lossless_dtype(checkpoint.tensors)
        weights = next(name for name, stored in _DTYPES.items() if stored == dtype)
    elif weights not in _DTYPES:
        raise BackendError(f"Weights cannot be stored as {weights!r}; use one of {', '.join(_DTYPES)}.")
    onnx_package()
    (folder / MANIFEST).unlink(missing_ok=True)  # so that a folder is never half old
    save_mlx_style(checkpoint, folder, _DTYPES[weights])
    config, stored = checkpoint.config, read_safetensors(folder / DECODER_WEIGHTS)
    predictor = _with_weights(Predictor(config), stored, "decoder.")
    joint = _with_weights(Joint(config), stored, "joint.")
    return write_manifest(
        folder,
        config=config,
        runtime="mlx",
        framing="native",
        max_frames=None,  # the runtime makes its position tables as long as it wants them
        weights=weights,
        source=source,
        source_revision=source_revision,
        files=[
            *(ENCODER, DECODER_WEIGHTS, CONFIG, TOKENS, MEL_FILTERS),
            *export_predictor(config, predictor, folder / DECODER, "fp32"),
            *export_joint(config, joint, folder / JOINER, "fp32"),
        ],
    )


def _with_weights(module: M, tensors: Mapping[str, NDArray[Any]], prefix: str) -> M:
    weights = {
        name.removeprefix(prefix): torch.from_numpy(array).float()
        for name, array in tensors.items()
        if name.startswith(prefix)
    }
    module.load_state_dict(weights, strict=True)
    return module.eval().requires_grad_(False)
