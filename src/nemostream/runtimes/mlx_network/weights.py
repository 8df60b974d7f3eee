"""From a checkpoint to the MLX network: layouts, precision, quantisation.

========================== =============================== ===================================
canonical name ends in     checkpoint                      here
========================== =============================== ===================================
conv_in, depthwise (stem)  [out, in, 3, 3]                 [out, 3, 3, in]
pointwise (stem)           [out, in, 1, 1]                 linear, [out, in]
subsampling.linear         inputs channel by channel       inputs frequency by frequency
conv.depthwise_conv        [D, 1, kernel]                  [kernel, D]
conv.pointwise_conv1, 2    [out, in, 1]                    linear, [out, in]
relative_k_proj            [D, D]                          positions [heads, distances, head size]
prompt_projector.linear_1  [inner, D + prompts]            linear [inner, D], slots [prompts, inner]
========================== =============================== ===================================

Other linear layers keep [out, in], which is MLX's convention too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.config import ModelConfig
from nemostream.errors import BackendError
from nemostream.runtimes.mlx_network.attention import position_encoding
from nemostream.runtimes.mlx_network.network import DecoderNetwork, EncoderNetwork

Array = NDArray[Any]

DECODER_PREFIXES = ("decoder.", "joint.")
GROUP_SIZES = (64, 32)  # of quantised linears, the preferred one first; a row has to be a multiple of it
_QUANTISED = ("encoder.layers.", "prompt_projector.")  # 96 % of the weights of the published models
_DTYPES = {"fp32": mx.float32, "fp16": mx.float16, "bf16": mx.bfloat16}


@dataclass(frozen=True)
class Precision:
    """How the conformer layers, the prompt and the projection compute.

    The stem, the predictor and the joint are always fp32.

    Attributes:
        dtype: "fp32", "fp16" or "bf16": of activations, caches, and of weights that are not quantised.
        bits: 8 or 4 for quantised linear layers, None for none.
    """

    dtype: str
    bits: int | None = None


# a quantised layer computes in fp16, since its activations gain nothing from more
PRECISIONS = {
    "fp32": Precision("fp32"),
    "fp16": Precision("fp16"),
    "bf16": Precision("bf16"),
    "int8": Precision("fp16", 8),
    "int4": Precision("fp16", 4),
}


def build_encoder(checkpoint: Checkpoint, precision: Precision, past: int, max_frames: int) -> EncoderNetwork:
    """Encoder, prompt and projection with a checkpoint's weights.

    Args:
        checkpoint: the model.
        precision: how to compute.
        past: cached frames that every call attends to.
        max_frames: most new frames of a call.

    Raises:
        BackendError: if it should be quantised and no layer can be.
    """
    config = checkpoint.config
    weights: dict[str, mx.array] = {}
    for name, array in checkpoint.tensors.items():
        if not name.startswith(DECODER_PREFIXES):
            weights |= convert(name, array, config, past, max_frames)
    network = EncoderNetwork(config, past, max_frames)
    dtype = _DTYPES[precision.dtype]
    _load(network, weights, lambda name: mx.float32 if name.startswith("encoder.subsampling.") else dtype)
    if precision.bits is not None:
        quantise(network, precision.bits)
    mx.eval(network.parameters())
    return network


def build_decoder(checkpoint: Checkpoint) -> DecoderNetwork:
    """Predictor and joint with a checkpoint's weights, in fp32."""
    weights = {name: array for name, array in checkpoint.tensors.items() if name.startswith(DECODER_PREFIXES)}
    network = DecoderNetwork(checkpoint.config)
    _load(network, weights, lambda name: mx.float32)
    mx.eval(network.parameters())
    return network


def convert(name: str, array: Array, config: ModelConfig, past: int, max_frames: int) -> dict[str, Array]:
    """Parameters of the MLX network, by name, that a tensor with a canonical name becomes."""
    if name.endswith("self_attn.relative_k_proj.weight"):
        table = position_encoding(past, max_frames, config.hidden_size) @ array.astype(np.float32).T
        per_head = table.reshape(len(table), config.num_heads, config.head_size).swapaxes(0, 1)
        return {name.replace("relative_k_proj.weight", "positions"): per_head}
    if name == "prompt_projector.linear_1.weight":
        frame, slots = np.split(array, [config.hidden_size], axis=1)
        return {name: frame, "prompt_projector.slots": slots.T}
    if name == "encoder.subsampling.linear.weight":
        by_channel = array.reshape(len(array), config.subsampling_channels, -1)
        return {name: by_channel.swapaxes(1, 2).reshape(array.shape)}
    if name.endswith((".pointwise_conv.weight", ".pointwise_conv1.weight", ".pointwise_conv2.weight")):
        return {name: array.reshape(array.shape[:2])}
    if name.endswith(".conv.depthwise_conv.weight"):
        return {name: array[:, 0].T}
    return {name: array.transpose(0, 2, 3, 1) if array.ndim == 4 else array}


def quantise(network: EncoderNetwork, bits: int) -> None:
    """Quantise the linear layers of the conformer and of the prompt, with a scale and an offset a group.

    Raises:
        BackendError: if none has inputs that can be grouped.
    """
    kept: list[str] = []

    def choose(path: str, module: nn.Module) -> bool | dict[str, int]:
        if not isinstance(module, nn.Linear) or not path.startswith(_QUANTISED):
            return False
        inputs = module.weight.shape[1]
        for group_size in GROUP_SIZES:
            if inputs % group_size == 0:
                return {"group_size": group_size, "bits": bits}
        kept.append(path)
        return False

    nn.quantize(network, class_predicate=choose)
    layers = sum(isinstance(module, nn.QuantizedLinear) for module in network.modules())
    if not layers:
        raise BackendError(
            f"This model cannot be quantised by MLX: no linear layer has a multiple of {GROUP_SIZES[-1]} "
            "inputs; use fp16."
        )
    if kept:
        warnings.warn(
            f"{len(kept)} of {len(kept) + layers} linear layers have inputs that are not a multiple of "
            f"{GROUP_SIZES[-1]} and are not quantised.",
            stacklevel=2,
        )


def _load(network: nn.Module, weights: Mapping[str, Array], dtype: Any) -> None:
    """Put all weights in, each as ``dtype(name)``; every parameter has to be there."""
    arrays = []
    for name, array in weights.items():
        wanted = dtype(name)
        # numpy has no bfloat16, and a cast of the strided views that `convert` gives is a copy anyway
        arrays.append((name, mx.array(np.ascontiguousarray(array)).astype(wanted)))
    network.load_weights(arrays, strict=True)
