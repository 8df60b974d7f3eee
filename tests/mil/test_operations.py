"""Every operation of the MIL runner against PyTorch's, over shapes and parameters, from saved programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional

pytest.importorskip("coremltools", reason="the extra coreml is not installed")

from nemostream.mil.operations import OPERATIONS
from tests.mil.programs import run_program

Array = NDArray[Any]
TOLERANCE = 2e-6  # relative to the largest number: the same fp32 sums in another order
OPSETS = ["iOS15", "iOS16", "iOS17", "iOS18"]

few = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 1000)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def numbers(seed: int, *shape: int, positive: bool = False) -> Array:
    values = np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)
    return np.abs(values) + np.float32(0.1) if positive else values


def same(found: Array, expected: torch.Tensor | Array) -> None:
    reference = np.asarray(expected)
    assert found.shape == reference.shape
    limit = TOLERANCE * max(1.0, float(np.abs(reference).max(initial=0)))
    assert np.abs(found.astype(np.float64) - reference.astype(np.float64)).max(initial=0) <= limit


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "exp": torch.exp,
    "identity": torch.clone,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "square": torch.square,
    "tanh": torch.tanh,
}
POSITIVE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "log": torch.log,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "real_div": torch.div,
    "floor_div": torch.floor_divide,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
COMPARISONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
}


@few
@given(shape=shapes, seed=seeds)
def test_of_one_argument(shape: tuple[int, ...], seed: int) -> None:
    for functions, x in ((UNARY, numbers(seed, *shape)), (POSITIVE, numbers(seed, *shape, positive=True))):
        results = run_program(
            lambda mb, x, names=tuple(functions): [getattr(mb, name)(x=x) for name in names], {"x": x}
        )
        for function, found in zip(functions.values(), results, strict=True):
            same(found, function(torch.from_numpy(x)))


@few
@given(shape=shapes, seed=seeds, data=st.data())
def test_of_two_arguments_that_broadcast(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    other = tuple(data.draw(st.sampled_from([1, size])) for size in shape)
    x, y = numbers(seed, *shape), numbers(seed + 1, *other)
    whole = np.round(x).astype(np.int32), np.round(np.abs(y) + 1).astype(np.int32)
    for left, right in ((x, y), whole):
        names = [name for name in BINARY if left.dtype == np.float32 or name != "real_div"]
        results = run_program(
            lambda mb, x, y, names=names: [getattr(mb, name)(x=x, y=y) for name in names],
            {"x": left, "y": right},
        )
        for name, found in zip(names, results, strict=True):
            same(found, BINARY[name](torch.from_numpy(left), torch.from_numpy(right)))
        results = run_program(
            lambda mb, x, y: [mb.cast(x=getattr(mb, name)(x=x, y=y), dtype="int32") for name in COMPARISONS],
            {"x": np.round(left), "y": np.round(right)},
        )
        for compare, found in zip(COMPARISONS.values(), results, strict=True):
            same(found, compare(torch.from_numpy(np.round(left)), torch.from_numpy(np.round(right))).int())


@few
@given(seed=seeds, shape=shapes)
def test_logic_select_clip_pow_and_cast(seed: int, shape: tuple[int, ...]) -> None:
    x, y = numbers(seed, *shape), numbers(seed + 1, *shape)

    def build(mb: Any, x: Any, y: Any) -> list[Any]:
        a, b = mb.greater(x=x, y=0.0), mb.greater(x=y, y=0.0)
        booleans = [mb.logical_and(x=a, y=b), mb.logical_or(x=a, y=b), mb.logical_not(x=a)]
        return [
            *(mb.cast(x=value, dtype="fp32") for value in booleans),
            mb.select(cond=a, a=x, b=y),
            mb.clip(x=x, alpha=-0.5, beta=1.25),
            mb.pow(x=mb.abs(x=x), y=2.5),
            mb.cast(x=x, dtype="int32"),
            mb.cast(x=mb.cast(x=x, dtype="bool"), dtype="int32"),
        ]

    found = run_program(build, {"x": x, "y": y})
    left, right = torch.from_numpy(x), torch.from_numpy(y)
    a, b = left > 0, right > 0
    expected = [(a & b).float(), (a | b).float(), (~a).float(), torch.where(a, left, right)]
    expected += [left.clamp(-0.5, 1.25), left.abs() ** 2.5, left.int(), left.bool().int()]
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@few
@given(seed=seeds, sizes=st.lists(st.integers(1, 4), min_size=2, max_size=3), data=st.data())
def test_of_shapes(seed: int, sizes: list[int], data: st.DataObject) -> None:
    x = numbers(seed, *sizes)
    rank = len(sizes)
    axis = data.draw(st.integers(-rank, rank - 1))
    perm = data.draw(st.permutations(range(rank)))
    reps = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    flat = (2 if x.size % 2 == 0 else 1, -1)

    def build(mb: Any, x: Any) -> list[Any]:
        wide = mb.expand_dims(x=x, axes=[0, rank + 1])
        return [
            mb.transpose(x=x, perm=perm),
            mb.tile(x=x, reps=reps),
            mb.reshape(x=x, shape=flat),
            wide,
            mb.squeeze(x=wide, axes=[0, rank + 1]),
            mb.concat(values=[x, mb.mul(x=x, y=2.0), x], axis=axis),
            mb.stack(values=[x, mb.mul(x=x, y=2.0)], axis=axis),
            mb.softmax(x=x, axis=axis),
            mb.reduce_argmax(x=x, axis=axis, keep_dims=False),
            mb.reduce_argmax(x=x, axis=axis, keep_dims=True),
            mb.reduce_sum(x=x, axes=[axis], keep_dims=True),
            mb.reduce_mean(x=x, axes=[axis], keep_dims=False),
            mb.reduce_max(x=x, axes=[axis], keep_dims=False),
            mb.reduce_min(x=x, axes=[axis], keep_dims=False),
        ]

    found = run_program(build, {"x": x})
    t = torch.from_numpy(x)
    wide = t[None, ..., None]
    expected = [
        t.permute(*perm),
        t.tile(reps),
        t.reshape(flat),
        wide,
        t,
        torch.cat([t, 2 * t, t], dim=axis),
        torch.stack([t, 2 * t], dim=axis),
        t.softmax(axis),
        t.argmax(axis),
        t.argmax(axis, keepdim=True),
        t.sum(axis, keepdim=True),
        t.mean(axis),
        t.amax(axis),
        t.amin(axis),
    ]
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@few
@given(seed=seeds, sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3), data=st.data())
def test_slices(seed: int, sizes: list[int], data: st.DataObject) -> None:
    """Against Python's own indexing, with masks, strides, ends counted from the end, and single places."""
    x = numbers(seed, *sizes)
    begin, end, stride, first, last, single, index = [], [], [], [], [], [], []
    for size in sizes:
        start = data.draw(st.integers(0, size - 1))
        stop = data.draw(st.integers(start + 1, size))
        step, open_start, open_stop = (
            data.draw(st.sampled_from(c)) for c in ([1, 2], [False, True], [False, True])
        )
        one = data.draw(st.booleans()) and len(sizes) > 1 and len(single) > 0 and not any(single)
        from_end = data.draw(st.booleans()) and stop < size and not one
        begin.append(start)
        end.append(stop - size if from_end else stop)
        stride.append(1 if one else step)
        first.append(open_start and not one)
        last.append(open_stop and not one)
        single.append(one)
        index.append(
            start if one else slice(None if open_start else start, None if open_stop else stop, step)
        )
    (found, by_size) = run_program(
        lambda mb, x: [
            mb.slice_by_index(
                x=x, begin=begin, end=end, stride=stride, begin_mask=first, end_mask=last, squeeze_mask=single
            ),
            mb.slice_by_size(x=x, begin=begin, size=[-1] * len(sizes)),
        ],
        {"x": x},
    )
    same(found, x[tuple(index)])
    same(by_size, x[tuple(slice(start, None) for start in begin)])


@few
@given(seed=seeds, opset=st.sampled_from(OPSETS), data=st.data())
def test_gather(seed: int, opset: str, data: st.DataObject) -> None:
    x = numbers(seed, 5, 4, 3)
    axis = data.draw(st.integers(0, 2))
    indices = np.array(
        data.draw(st.lists(st.integers(0, x.shape[axis] - 1), min_size=1, max_size=4)), np.int32
    )
    (found,) = run_program(
        lambda mb, x, i: mb.gather(x=x, indices=i, axis=axis), {"x": x, "i": indices}, opset
    )
    same(found, torch.from_numpy(x).index_select(axis, torch.from_numpy(indices).long()))


@few
@given(seed=seeds, axis=st.integers(0, 2), parts=st.integers(1, 3), each=st.integers(1, 3))
def test_split(seed: int, axis: int, parts: int, each: int) -> None:
    sizes = [2, 2, 2]
    sizes[axis] = parts * each + 1
    x = numbers(seed, *sizes)
    uneven = [each] * parts + [1]
    found = run_program(lambda mb, x: list(mb.split(x=x, split_sizes=uneven, axis=axis)), {"x": x})
    for one, other in zip(found, torch.from_numpy(x).split(uneven, axis), strict=True):
        same(one, other)
    if parts > 1:
        x = np.ascontiguousarray(np.take(x, range(parts * each), axis))
        found = run_program(lambda mb, x: list(mb.split(x=x, num_splits=parts, axis=axis)), {"x": x})
        for one, other in zip(found, torch.from_numpy(x).chunk(parts, axis), strict=True):
            same(one, other)


@few
@given(seed=seeds, rows=st.integers(1, 5), inner=st.integers(1, 7), columns=st.integers(1, 6))
def test_products(seed: int, rows: int, inner: int, columns: int) -> None:
    x, y = numbers(seed, 2, rows, inner), numbers(seed + 1, 2, inner, columns)
    weight, bias = numbers(seed + 2, columns, inner), numbers(seed + 3, columns)

    def build(mb: Any, x: Any, y: Any) -> list[Any]:
        turned, turned_y = mb.transpose(x=x, perm=[0, 2, 1]), mb.transpose(x=y, perm=[0, 2, 1])
        return [
            mb.matmul(x=x, y=y),
            mb.matmul(x=turned, y=turned_y, transpose_x=True, transpose_y=True),
            mb.linear(x=x, weight=weight, bias=bias),
            mb.linear(x=x, weight=weight),
        ]

    found = run_program(build, {"x": x, "y": y})
    a, b, w = map(torch.from_numpy, (x, y, weight))
    expected = [a @ b, a @ b, functional.linear(a, w, torch.from_numpy(bias)), functional.linear(a, w)]
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@few
@given(
    seed=seeds,
    dimensions=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_convolutions(
    seed: int, dimensions: int, groups: int, kernel: int, stride: int, pads: tuple[int, int]
) -> None:
    """Also depthwise ones, and padding that differs at the two ends."""
    x = numbers(seed, 2, 4, *(6 + dimension for dimension in range(dimensions)))
    weight, bias = numbers(seed + 1, 8, 4 // groups, *[kernel] * dimensions), numbers(seed + 2, 8)
    common = {"weight": weight, "strides": [stride] * dimensions, "groups": groups}
    found = run_program(
        lambda mb, x: [
            mb.conv(x=x, bias=bias, pad_type="custom", pad=list(pads) * dimensions, **common),
            mb.conv(x=x, pad_type="valid", **common),
        ],
        {"x": x},
    )
    convolve = (functional.conv1d, functional.conv2d)[dimensions - 1]
    t, w = torch.from_numpy(x), torch.from_numpy(weight)
    padded = functional.pad(t, list(pads) * dimensions)
    same(found[0], convolve(padded, w, torch.from_numpy(bias), stride=stride, groups=groups))
    same(found[1], convolve(t, w, stride=stride, groups=groups))


@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (5, 2, 1), (9, 4, 3)])
def test_same_padding(size: int, kernel: int, stride: int) -> None:
    """As much padding as makes ceil(size / stride) results; the odd one at the end, or at the start."""
    x, weight = numbers(0, 1, 2, size), numbers(1, 3, 2, kernel)
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    kinds = {"same": (total // 2, -(-total // 2)), "same_lower": (-(-total // 2), total // 2)}
    for kind, pads in kinds.items():
        (found,) = run_program(
            lambda mb, x, kind=kind: mb.conv(x=x, weight=weight, strides=[stride], pad_type=kind), {"x": x}
        )
        padded = functional.pad(torch.from_numpy(x), pads)
        same(found, functional.conv1d(padded, torch.from_numpy(weight), stride=stride))


@pytest.mark.parametrize(("mode", "torch_mode"), [("reflect", "reflect"), ("replicate", "replicate")])
def test_padding(mode: str, torch_mode: str) -> None:
    x = numbers(0, 2, 3, 5)
    pads = [0, 0, 0, 0, 2, 3]
    filled, mirrored = run_program(
        lambda mb, x: [
            mb.pad(x=x, pad=[0, 0, 1, 2, 3, 0], mode="constant", constant_val=-1.5),
            mb.pad(x=x, pad=pads, mode=mode),
        ],
        {"x": x},
    )
    t = torch.from_numpy(x)
    same(filled, functional.pad(t, (3, 0, 1, 2), value=-1.5))
    same(mirrored, functional.pad(t, (2, 3), mode=torch_mode))


@few
@given(seed=seeds, width=st.integers(2, 9), epsilon=st.sampled_from([1e-5, 1e-3]))
def test_layer_norm(seed: int, width: int, epsilon: float) -> None:
    x, gamma, beta = numbers(seed, 2, 3, width), numbers(seed + 1, width), numbers(seed + 2, width)
    found = run_program(
        lambda mb, x: [
            mb.layer_norm(x=x, axes=[-1], gamma=gamma, beta=beta, epsilon=epsilon),
            mb.layer_norm(x=x, axes=[1, 2], epsilon=epsilon),
        ],
        {"x": x},
    )
    t, g, b = map(torch.from_numpy, (x, gamma, beta))
    # a row of nearly equal numbers is divided by little, so compare to what the norm can resolve
    same(found[0], functional.layer_norm(t, (width,), g, b, epsilon))
    same(found[1], functional.layer_norm(t, (3, width), eps=epsilon))


@few
@given(seed=seeds, opset=st.sampled_from(OPSETS), whole=st.booleans(), batch=st.integers(1, 3))
def test_lstm(seed: int, opset: str, whole: bool, batch: int) -> None:
    """PyTorch orders its gates i, f, g, o; MIL has i, f, o, g."""
    steps, size, hidden = 4, 3, 5
    x, h, c = (
        numbers(seed, steps, batch, size),
        numbers(seed + 1, batch, hidden),
        numbers(seed + 2, batch, hidden),
    )
    layer = torch.nn.LSTM(size, hidden).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def reordered(tensor: torch.Tensor) -> Array:
        i, f, g, o = tensor.numpy().reshape(4, hidden, -1)
        return np.concatenate([i, f, o, g])

    weights = reordered(layer.weight_ih_l0), reordered(layer.weight_hh_l0)
    bias = reordered(layer.bias_ih_l0 + layer.bias_hh_l0)[:, 0]
    found = run_program(
        lambda mb, x, h, c: list(
            mb.lstm(
                x=x,
                initial_h=h,
                initial_c=c,
                weight_ih=weights[0],
                weight_hh=weights[1],
                bias=bias,
                output_sequence=whole,
            )
        ),
        {"x": x, "h": h, "c": c},
        opset,
    )
    outputs, (last_h, last_c) = layer(
        torch.from_numpy(x), (torch.from_numpy(h)[None], torch.from_numpy(c)[None])
    )
    same(found[0], outputs if whole else outputs[-1:])
    same(found[1], last_h[0])
    same(found[2], last_c[0])


@pytest.mark.parametrize("opset", OPSETS)
def test_the_versions_of_operations_agree(opset: str) -> None:
    """What changed from iOS15 to iOS18 is where parameters stand and which types they have."""
    x = numbers(3, 2, 4, 6)

    def build(mb: Any, x: Any) -> list[Any]:
        y = mb.linear(x=mb.transpose(x=x, perm=[0, 2, 1]), weight=numbers(4, 3, 4), bias=numbers(5, 3))
        y = mb.reshape(x=y, shape=[2, 3, 6])
        y = mb.slice_by_index(x=y, begin=[0, 1, 0], end=[2, 3, 6])
        whole = mb.cast(x=y, dtype="int32")
        return [y, mb.gather(x=y, indices=[1, 0], axis=1), mb.floor_div(x=whole, y=3)]

    found = run_program(build, {"x": x}, opset)
    t = functional.linear(
        torch.from_numpy(x).mT, torch.from_numpy(numbers(4, 3, 4)), torch.from_numpy(numbers(5, 3))
    )
    y = t.reshape(2, 3, 6)[:, 1:3]
    same(found[0], y)
    same(found[1], y[:, [1, 0]])
    same(found[2], y.int().floor_divide(3))


def test_every_operation_is_tested_here_or_with_compressed_weights() -> None:
    here = {*UNARY, *POSITIVE, *BINARY, *COMPARISONS, "logical_and", "logical_or", "logical_not", "select"}
    here |= {
        "clip",
        "pow",
        "cast",
        "transpose",
        "tile",
        "reshape",
        "expand_dims",
        "squeeze",
        "concat",
        "stack",
    }
    here |= {"softmax", "reduce_argmax", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "gather"}
    here |= {
        "slice_by_index",
        "slice_by_size",
        "split",
        "matmul",
        "linear",
        "conv",
        "pad",
        "layer_norm",
        "lstm",
    }
    compressed = {"constexpr_affine_dequantize", "constexpr_blockwise_shift_scale", "constexpr_lut_to_dense"}
    assert set(OPERATIONS) == here | compressed
