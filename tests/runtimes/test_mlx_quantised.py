"""Quantised MLX computes what its rounded weights say: the reference network with the same numbers in it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.runtimes.torch import TorchRuntime
from tests.models import small_checkpoint, small_config

pytest.importorskip("mlx.core", exc_type=ImportError, reason="the extra mlx is not installed")

from mlx import nn

from nemostream.runtimes.mlx import MAX_FRAMES, MlxRuntime
from nemostream.runtimes.mlx_network.weights import PRECISIONS, Precision, build_encoder
from tests.runtimes.test_mlx_runtime import BOUNDS, encode_all, mel_of


def groupable() -> Checkpoint:
    """All linear layers have multiples of 32 inputs."""
    return small_checkpoint(dataclasses.replace(small_config(), hidden_size=64, intermediate_size=128))


def dequantised(checkpoint: Checkpoint, precision: Precision) -> Checkpoint:
    """The checkpoint with every quantised matrix as its integers, scales and offsets say, by numpy."""
    network = build_encoder(checkpoint, precision, 56, MAX_FRAMES)
    tensors = {name: array.copy() for name, array in checkpoint.tensors.items()}
    layers = {
        name: module for name, module in network.named_modules() if isinstance(module, nn.QuantizedLinear)
    }
    for path, layer in layers.items():
        levels = np.array(layer.weight).view(np.uint8)  # the first of a word is in its lowest bits
        if precision.bits == 4:
            levels = np.stack([levels & 15, levels >> 4], axis=2).reshape(len(levels), -1)
        scales, offsets = (
            np.repeat(np.array(values).astype(np.float32), layer.group_size, axis=1)
            for values in (layer.scales, layer.biases)
        )
        matrix = levels * scales + offsets
        name = f"{path}.weight"
        old = tensors[name]
        new = old.reshape(len(old), -1).copy()
        new[:, : matrix.shape[1]] = matrix  # the rest of a prompt's matrix is its table of languages
        error = np.abs(new - old.reshape(new.shape))[:, : matrix.shape[1]]
        assert np.all(error < 1.1 * np.abs(scales))  # in MLX's fit the outermost weights may be off by one
        tensors[name] = new.reshape(old.shape)
    config = checkpoint.config
    # two feed-forwards of two; queries, keys, values and output; two of the convolution; two of the prompt
    assert len(layers) == config.num_layers * (4 + 4 + 2) + 2
    return dataclasses.replace(checkpoint, tensors=tensors)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_equals_the_reference_with_the_same_weights(bits: int) -> None:
    """In fp32 only the order of additions differs, so the bound is that of fp32."""
    checkpoint, mel = groupable(), mel_of(6)
    ours = encode_all(MlxRuntime(checkpoint, precision=Precision("fp32", bits)), mel, [0, 1])
    theirs = encode_all(TorchRuntime(dequantised(checkpoint, Precision("fp32", bits))), mel, [0, 1])
    unrounded = encode_all(TorchRuntime(checkpoint), mel, [0, 1])
    scale = np.abs(theirs).max()
    assert np.abs(ours - theirs).max() < BOUNDS["fp32"] * scale
    assert np.abs(ours - unrounded).max() > 100 * BOUNDS["fp32"] * scale  # it is quantised indeed


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_named_precisions_add_the_rounding_of_fp16(name: str) -> None:
    checkpoint, mel = groupable(), mel_of(6)
    ours = encode_all(MlxRuntime(checkpoint, precision=name), mel, [0, 1])
    theirs = encode_all(TorchRuntime(dequantised(checkpoint, PRECISIONS[name])), mel, [0, 1])
    assert np.abs(ours - theirs).max() < BOUNDS["fp16"] * np.abs(theirs).max()
