"""Compressed constants to numbers: linear quantisation, one scale per block, look-up tables."""

from __future__ import annotations

import numpy as np

from nemostream.mil.values import Array


def affine_dequantize(quantized_data: Array, zero_point: Array, scale: Array, axis: Array) -> Array:
    """iOS16: (number - zero point) * scale, these one for all or one for each index of ``axis``."""
    shape = [1] * quantized_data.ndim
    shape[int(axis)] = -1
    shift = zero_point.astype(np.float32).reshape(shape if zero_point.ndim else ())
    factor = scale.astype(np.float32).reshape(shape if scale.ndim else ())
    return (factor * (quantized_data.astype(np.float32) - shift)).astype(scale.dtype)


def blockwise_shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    """iOS18: (number - offset) * scale; each scale is for a block, whose size the shapes tell."""
    numbers = data.astype(np.float32)
    if offset is not None:
        numbers = numbers - _stretched(offset.astype(np.float32), data.shape)
    return (numbers * _stretched(scale.astype(np.float32), data.shape)).astype(scale.dtype)


def lut_to_dense(
    indices: Array, lut: Array, shape: Array | None = None, vector_axis: Array | None = None
) -> Array:
    """Numbers from a table.

    iOS16 packs the indices into bytes, lowest bit first, has one table, and ``shape`` is that of the result.
    iOS18 has a table [..., entries, vector] for each block of the indices; ``vector_axis`` is where vectors
    are laid out.
    """
    if shape is not None:
        bits = int(np.log2(lut.size))
        count = int(np.prod(shape))
        flags = np.unpackbits(indices.astype(np.uint8), bitorder="little")[: count * bits].reshape(
            count, bits
        )
        return lut[flags @ (1 << np.arange(bits))].reshape(shape.tolist())
    entries, vector = lut.shape[-2:]
    tables = lut.reshape(*lut.shape[: indices.ndim], entries, vector)
    which: tuple[Array, ...] = np.indices(indices.shape, sparse=True)
    blocks = tuple(
        index // (size // count)
        for index, size, count in zip(which, indices.shape, tables.shape, strict=False)
    )
    found: Array = tables[(*blocks, indices.astype(np.int64))]  # [..., vector]
    if vector == 1:
        return np.squeeze(found, -1)
    axis = int(vector_axis) if vector_axis is not None else indices.ndim - 1
    moved = np.moveaxis(found, -1, axis + 1)
    dense = list(indices.shape)
    dense[axis] *= vector
    return moved.reshape(dense)


def _stretched(values: Array, shape: tuple[int, ...]) -> Array:
    """Repeat each value over its block."""
    for axis, (count, size) in enumerate(zip(values.shape, shape, strict=True)):
        if count not in (1, size):
            values = np.repeat(values, size // count, axis)
    return values
