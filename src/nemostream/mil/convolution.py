"""Convolutions of one or two dimensions, with groups, as matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemostream.mil.values import Array


def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Array | None = None,
    pad_type: Array | str = "valid",
    pad: Array | None = None,
    dilations: Array | None = None,
    groups: Array | int = 1,
) -> Array:
    """x [B, C, *S], weight [C', C / groups, *K] -> [B, C', *S'].

    Raises:
        ValueError: on dilations, which no graph of this project has.
    """
    spatial = weight.shape[2:]
    steps = [1] * len(spatial) if strides is None else strides.tolist()
    if dilations is not None and (dilations != 1).any():
        raise ValueError("dilations are not supported")
    padded = np.pad(x, [(0, 0), (0, 0), *_padding(str(pad_type), pad, x.shape[2:], spatial, steps)])
    axes = tuple(range(2, x.ndim))
    windows: Any = np.lib.stride_tricks.sliding_window_view(padded, spatial, axis=axes)
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in steps))]
    batch, channels, *out = windows.shape[: x.ndim]
    count = int(groups)
    # [B, groups, positions, channels of a group * K] @ [groups, channels of a group * K, C' of a group]
    windows = windows.reshape(batch, count, channels // count, int(np.prod(out)), int(np.prod(spatial)))
    columns = windows.transpose(0, 1, 3, 2, 4).reshape(batch, count, int(np.prod(out)), -1)
    kernels = weight.reshape(count, weight.shape[0] // count, -1).transpose(0, 2, 1)
    result = (columns @ kernels).transpose(0, 1, 3, 2).reshape(batch, weight.shape[0], *out)
    made: Array = result if bias is None else result + bias.reshape(-1, *[1] * len(spatial))
    return made


def _padding(
    kind: str, pad: Array | None, sizes: tuple[int, ...], kernel: tuple[int, ...], steps: list[int]
) -> list[tuple[int, int]]:
    if kind == "valid":
        return [(0, 0)] * len(kernel)
    if kind == "custom" and pad is not None:
        return [(int(first), int(last)) for first, last in pad.reshape(-1, 2)]
    if kind in ("same", "same_lower"):
        pairs = []
        for size, width, step in zip(sizes, kernel, steps, strict=True):
            total = max(0, (-(-size // step) - 1) * step + width - size)
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if kind == "same" else (large, small))
        return pairs
    raise ValueError(f"pad_type {kind!r} is not supported")
