"""What each MIL operation does, in numpy. Parameters have the names that MIL gives them.

Floating numbers come as float32. Semantics: the public reference of coremltools' MIL builder, iOS15 to 18.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nemostream.mil.compression import affine_dequantize, blockwise_shift_scale, lut_to_dense
from nemostream.mil.convolution import conv
from nemostream.mil.recurrent import lstm
from nemostream.mil.values import Array

_CAST = {"fp16": np.float32, "fp32": np.float32, "int32": np.int32, "bool": np.bool_, "int16": np.int16}
_CAST |= {"uint16": np.uint16, "int8": np.int8, "uint8": np.uint8}


def _cast(x: Array, dtype: Array) -> Array:
    return x.astype(_CAST[str(dtype)])


def _clip(x: Array, alpha: Array, beta: Array) -> Array:
    return np.clip(x, alpha, beta)


def _concat(values: Sequence[Array], axis: Array, interleave: Array | bool = False) -> Array:
    if interleave:
        raise ValueError("interleave is not supported")
    return np.concatenate(values, int(axis))


def _stack(values: Sequence[Array], axis: Array) -> Array:
    return np.stack(values, int(axis))


def _expand_dims(x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(axes.tolist()))


def _squeeze(x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x, None if axes is None else tuple(axes.tolist()))


def _gather(
    x: Array,
    indices: Array,
    axis: Array | int = 0,
    batch_dims: Array | int = 0,
    validate_indices: Any = False,
) -> Array:
    del validate_indices  # numpy does
    if batch_dims:
        raise ValueError("batch_dims is not supported")
    return np.take(x, indices.astype(np.int64), int(axis))


def _layer_norm(
    x: Array,
    axes: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Array | float = 1e-5,
) -> Array:
    over = tuple(axes.tolist())
    centred = x - x.mean(over, keepdims=True, dtype=np.float32)
    scale = np.sqrt(np.square(centred).mean(over, keepdims=True) + np.float32(epsilon))
    normal = centred / scale
    if gamma is not None:
        normal = normal * gamma
    made: Array = normal if beta is None else normal + beta
    return made


def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    product = x @ weight.T
    return product if bias is None else product + bias


def _matmul(x: Array, y: Array, transpose_x: Any = False, transpose_y: Any = False) -> Array:
    left = np.swapaxes(x, -1, -2) if transpose_x else x
    right = np.swapaxes(y, -1, -2) if transpose_y else y
    return left @ right


def _pad(x: Array, pad: Array, mode: Array | str = "constant", constant_val: Array | float = 0.0) -> Array:
    pairs = pad.reshape(-1, 2).tolist()
    widths = [(0, 0)] * (x.ndim - len(pairs)) + [tuple(pair) for pair in pairs]  # of the last dimensions
    if str(mode) == "constant":
        return np.pad(x, widths, constant_values=x.dtype.type(constant_val))
    kinds: dict[str, Any] = {"reflect": "reflect", "replicate": "edge"}
    return np.pad(x, widths, mode=kinds[str(mode)])


def _reshape(x: Array, shape: Array) -> Array:
    sizes = [x.shape[index] if size == 0 else size for index, size in enumerate(shape.tolist())]
    return x.reshape(sizes)


def _select(cond: Array, a: Array, b: Array) -> Array:
    return np.where(cond, a, b)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _silu(x: Array) -> Array:
    made: Array = x / (1 + np.exp(-x))
    return made


def _slice_by_index(
    x: Array,
    begin: Array,
    end: Array,
    stride: Array | None = None,
    begin_mask: Array | None = None,
    end_mask: Array | None = None,
    squeeze_mask: Array | None = None,
) -> Array:
    index: list[Any] = []
    for axis in range(x.ndim):
        if squeeze_mask is not None and squeeze_mask[axis]:
            index.append(int(begin[axis]))
            continue
        first = None if begin_mask is not None and begin_mask[axis] else int(begin[axis])
        last = None if end_mask is not None and end_mask[axis] else int(end[axis])
        index.append(slice(first, last, None if stride is None else int(stride[axis])))
    made: Array = x[tuple(index)]
    return made


def _slice_by_size(x: Array, begin: Array, size: Array) -> Array:
    ends = np.where(size < 0, np.array(x.shape), begin + size)
    return x[tuple(slice(int(first), int(last)) for first, last in zip(begin, ends, strict=True))]


def _softmax(x: Array, axis: Array | int = -1) -> Array:
    powers = np.exp(x - x.max(int(axis), keepdims=True))
    made: Array = powers / powers.sum(int(axis), keepdims=True)
    return made


def _split(
    x: Array, axis: Array, num_splits: Array | None = None, split_sizes: Array | None = None
) -> list[Array]:
    if split_sizes is not None:
        return np.split(x, np.cumsum(split_sizes)[:-1].tolist(), int(axis))
    return np.split(x, int(num_splits if num_splits is not None else 1), int(axis))


def _tile(x: Array, reps: Array) -> Array:
    return np.tile(x, reps.tolist())


def _transpose(x: Array, perm: Array) -> Array:
    return np.transpose(x, perm.tolist())


def _argmax(x: Array, axis: Array | int = -1, keep_dims: Any = False, output_dtype: Any = "int32") -> Array:
    del output_dtype  # the declared type of the result says it
    made: Array = x.argmax(int(axis), keepdims=bool(keep_dims))
    return made


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(x: Array, axes: Array | None = None, keep_dims: Any = False) -> Array:
        return function(x, axis=None if axes is None else tuple(axes.tolist()), keepdims=bool(keep_dims))

    return reduce


def _unary(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: function(x)


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: function(x, y)


def _log(x: Array, epsilon: Array | float = 1e-45) -> Array:
    return np.log(x + np.float32(epsilon))


def _rsqrt(x: Array, epsilon: Array | float = 1e-12) -> Array:
    return 1 / np.sqrt(x + np.float32(epsilon))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs": _unary(np.abs),
    "add": _binary(np.add),
    "cast": _cast,
    "clip": _clip,
    "concat": _concat,
    "constexpr_affine_dequantize": affine_dequantize,
    "constexpr_blockwise_shift_scale": blockwise_shift_scale,
    "constexpr_lut_to_dense": lut_to_dense,
    "conv": conv,
    "equal": _binary(np.equal),
    "exp": _unary(np.exp),
    "expand_dims": _expand_dims,
    "floor_div": _binary(np.floor_divide),
    "gather": _gather,
    "greater": _binary(np.greater),
    "greater_equal": _binary(np.greater_equal),
    "identity": _unary(np.array),
    "layer_norm": _layer_norm,
    "less": _binary(np.less),
    "less_equal": _binary(np.less_equal),
    "linear": _linear,
    "log": _log,
    "logical_and": _binary(np.logical_and),
    "logical_not": _unary(np.logical_not),
    "logical_or": _binary(np.logical_or),
    "lstm": lstm,
    "matmul": _matmul,
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "mul": _binary(np.multiply),
    "not_equal": _binary(np.not_equal),
    "pad": _pad,
    "pow": _binary(np.power),
    "real_div": _binary(np.true_divide),
    "reduce_argmax": _argmax,
    "reduce_max": _reduce(np.max),
    "reduce_mean": _reduce(np.mean),
    "reduce_min": _reduce(np.min),
    "reduce_sum": _reduce(np.sum),
    "relu": lambda x: np.maximum(x, 0),
    "reshape": _reshape,
    "rsqrt": _rsqrt,
    "select": _select,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "slice_by_index": _slice_by_index,
    "slice_by_size": _slice_by_size,
    "softmax": _softmax,
    "split": _split,
    "sqrt": _unary(np.sqrt),
    "square": _unary(np.square),
    "squeeze": _squeeze,
    "stack": _stack,
    "sub": _binary(np.subtract),
    "tanh": _unary(np.tanh),
    "tile": _tile,
    "transpose": _transpose,
}
