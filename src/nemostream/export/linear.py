"""Linear layers of an ONNX graph, with weights in one of four forms.

fp32   as they are
fp16   matrices in two bytes, cast once when the graph is loaded; computation in fp32
int8   one scale per output; each row of the input is quantised on the fly with a scale of its own
int4   blocks of `INT4_BLOCK` inputs with a scale each; the input likewise, inside the operator

A row of the input never shares a scale with another one, unlike in ONNX Runtime's own
``DynamicQuantizeLinear``: otherwise what is recognised would depend on the streams that happen to share a
batch, and on how many chunks a call holds.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nemostream.errors import CheckpointError
from nemostream.export.graph import MICROSOFT, GraphBuilder

Weights = Literal["fp32", "fp16", "int8", "int4"]
Float32 = NDArray[np.float32]

FP16_MAX = 65504.0
INT4_BLOCK = 32  # larger blocks are faster and less exact
_INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level
_ZERO = 128  # zero point of quantised inputs, which are unsigned
_ZERO_OF_MOSTLY_POSITIVE = 64  # of inputs that SiLU made
_TINY = 1e-12  # of a row of zeros the scale must not be zero


class LinearLayers:
    """Adds linear layers to one graph.

    Args:
        graph: where to.
        weights: the form of their weights.
    """

    def __init__(self, graph: GraphBuilder, weights: Weights) -> None:
        self.graph, self.weights = graph, weights
        self._quantised: dict[str, tuple[str, str]] = {}  # a value -> its bytes and the scale of its rows
        self._zeros: dict[int, str] = {}  # zero point -> itself for every row

    def add(
        self,
        x: str,
        name: str,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        factor: float = 1.0,
        least: float | None = None,
        precise: bool = False,
    ) -> str:
        """x [R, inputs] -> [R, outputs].

        Args:
            x: the input.
            name: of the weight.
            weight: [outputs, inputs].
            bias: [outputs].
            factor: what the result without the bias is multiplied by, at no cost.
            least: a bound of x from below, zero or a little less, if there is one: a quantised input then has
                more levels above zero.
            precise: keep this one in fp32 (fp16 if that is the form), however the others are stored.

        Raises:
            CheckpointError: if a weight is not finite, or too large for fp16.
        """
        matrix = weight.detach().numpy().astype(np.float32, copy=False) * np.float32(factor)
        peak = float(np.abs(matrix).max())
        if not np.isfinite(peak):
            raise CheckpointError(f"{name} holds values that are not finite; fetch the checkpoint again.")
        if self.weights == "int8" and not precise:
            y = self._int8(x, name, matrix, least)
        elif self.weights == "int4" and not precise and matrix.shape[1] % INT4_BLOCK == 0:
            y = self._int4(x, name, matrix)
        else:
            y = self.graph.op("MatMul", x, self.stored(name, matrix.T))
        if bias is not None:
            y = self.graph.op("Add", y, self.graph.weight(f"{name}_bias", bias.detach().numpy()))
        return y

    def stored(self, name: str, array: NDArray[Any]) -> str:
        """An fp32 value that is stored in two bytes unless the form is fp32.

        Raises:
            CheckpointError: if a value is too large for fp16.
        """
        if self.weights == "fp32":
            return self.graph.weight(name, array.astype(np.float32, copy=False))
        return self.graph.op("Cast", self.graph.weight(f"{name}_fp16", as_half(name, array)), to=1)

    def table(self, name: str, array: NDArray[Any], rows: str) -> str:
        """Rows of a table [n, width] that is stored in two bytes unless the form is fp32."""
        if self.weights == "fp32":
            return self.graph.op("Gather", self.graph.weight(name, array), rows, axis=0)
        half = self.graph.weight(f"{name}_fp16", as_half(name, array))
        return self.graph.op("Cast", self.graph.op("Gather", half, rows, axis=0), to=1)

    def _int8(self, x: str, name: str, matrix: Float32, least: float | None) -> str:
        graph = self.graph
        zero = _ZERO if least is None else _ZERO_OF_MOSTLY_POSITIVE if least else 0
        values, scales = quantise_int8(matrix)
        rows, row_scales = self._quantise_rows(x, zero, least)
        y = graph.op(
            "MatMulIntegerToFloat",
            rows,
            graph.weight(name, values.T),
            graph.constant(1.0, np.float32),
            graph.weight(f"{name}_scale", scales),
            graph.constant(zero, np.uint8),
            "",
            domain=MICROSOFT,
            name=name,
        )
        return graph.op("Mul", y, row_scales)

    def _quantise_rows(self, x: str, zero: int, least: float | None) -> tuple[str, str]:
        """Bytes of x [R, K], and the scale of every row [R, 1]; done once for every x."""
        graph = self.graph
        if x not in self._quantised:
            magnitude = graph.op("Abs", x) if least is None else x
            peak = graph.op("ReduceMax", magnitude, graph.constant([1]), keepdims=1)
            scales = graph.op("Mul", peak, graph.constant(1 / (255 - zero), np.float32))
            smallest = -least / zero if least else _TINY
            scales = graph.op("Max", scales, graph.constant(smallest, np.float32))
            flat = graph.op("Reshape", scales, graph.constant([-1]))
            zeros = self._zeros.get(zero)
            if zeros is None:  # as many as there are rows, which is the same for all of a graph
                zeros = graph.op("Expand", graph.constant(zero, np.uint8), graph.op("Shape", flat))
                self._zeros[zero] = zeros
            self._quantised[x] = (graph.op("QuantizeLinear", x, flat, zeros, axis=0), scales)
        return self._quantised[x]

    def _int4(self, x: str, name: str, matrix: Float32) -> str:
        values, scales = quantise_int4(matrix)
        outputs, inputs = matrix.shape
        return self.graph.op(
            "MatMulNBits",
            x,
            self.graph.weight(name, values),
            self.graph.weight(f"{name}_scale", scales),
            domain=MICROSOFT,
            name=name,
            K=inputs,
            N=outputs,
            bits=4,
            block_size=INT4_BLOCK,
            accuracy_level=_INT8_ACTIVATIONS,
        )


def as_half(name: str, array: NDArray[Any]) -> NDArray[np.float16]:
    """Round to fp16.

    Raises:
        CheckpointError: if a value is too large for it.
    """
    if (peak := float(np.abs(array).max())) > FP16_MAX:
        raise CheckpointError(f"{name} has a value of {peak:g}, too large for fp16; use fp32 weights.")
    return array.astype(np.float16)


def quantise_int8(matrix: Float32) -> tuple[NDArray[np.int8], Float32]:
    """Quantise every output of a matrix [outputs, inputs]: values in -127 ... 127 and scales [outputs]."""
    scales = np.maximum(np.abs(matrix).max(axis=1), np.float32(_TINY)) / np.float32(127)
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def quantise_int4(matrix: Float32) -> tuple[NDArray[np.uint8], Float32]:
    """Quantise in blocks, as ``MatMulNBits`` lays them out.

    The extreme value of a block is what becomes -8, so that all sixteen levels are used.

    Returns:
        pairs of levels [outputs, blocks, block / 2], zero at 8, and scales [outputs, blocks].
    """
    outputs, inputs = matrix.shape
    blocks = matrix.reshape(outputs, inputs // INT4_BLOCK, INT4_BLOCK)
    index = np.abs(blocks).argmax(axis=2)[:, :, None]
    extreme = np.take_along_axis(blocks, index, axis=2)[:, :, 0]
    scales = np.where(extreme == 0, np.float32(_TINY), extreme / np.float32(-8))
    levels = np.clip(np.rint(blocks / scales[:, :, None]) + 8, 0, 15).astype(np.uint8)
    return levels[:, :, 0::2] | (levels[:, :, 1::2] << 4), scales.astype(np.float32)
