"""One conformer layer as part of an ONNX graph; see `nemostream.model.conformer` for what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nemostream.config import ModelConfig
from nemostream.export.graph import MICROSOFT, GraphBuilder
from nemostream.export.linear import LinearLayers
from nemostream.runtimes import onnx_graphs as graphs

_FLOAT, _FLOAT16 = 1, 10  # onnx.TensorProto
LEAST_SILU = -0.2785  # the smallest value of x sigmoid(x) is -0.27846


@dataclass(frozen=True)
class Call:
    """Names of what all layers share: B streams, N new frames, P old ones.

    Attributes:
        graph: the graph that they are in.
        batch: [1], B.
        frames: [1], N.
        past: [1], P.
        span: [1], P + 2 N, the distances that a call can have.
        table: [1] each, first and last row of the position tables that a call needs.
        mask: [B, 1, N, P + N], what is added to scores.
        real: [B N, 1], 1.0 for a real new frame.
        past_rows: [B, heads, P], rows of the memories of keys and values.
        gated_rows: [B, 1, kernel - 1], rows of the memory of the convolution.
    """

    graph: GraphBuilder
    batch: str
    frames: str
    past: str
    span: str
    table: tuple[str, str]
    mask: str
    real: str
    past_rows: str
    gated_rows: str

    def shape(self, *sizes: int) -> str:
        """The shape [B, N, *sizes]."""
        return self.graph.op(
            "Concat", self.batch, self.frames, self.graph.constant([*sizes]), axis=0, name="shape"
        )


class LayerGraph:
    """Adds a layer to the graph of ``linear``.

    Args:
        linear: its linear layers.
        config: the model.
        index: number of the layer.
        state: dtype of what streams keep.
    """

    def __init__(
        self, linear: LinearLayers, config: ModelConfig, index: int, state: type[np.generic]
    ) -> None:
        self.linear, self.graph, self.config, self.index = linear, linear.graph, config, index
        self.state = state
        self.name = f"encoder.layers.{index}"

    def add(self, layer: Any, x: str, call: Call, positions: Tensor) -> str:
        """x [B N, D] -> [B N, D]; ``positions`` is the whole table, [heads, W, head size]."""
        graph = self.graph
        x = graph.op("Add", x, self._feed_forward("feed_forward1", layer, x))
        normed = self._norm("norm_self_att", layer.norm_self_att, x)
        x = graph.op("Add", x, self._attention(layer.self_attn, normed, call, positions))
        normed = self._norm("norm_conv", layer.norm_conv, x)
        x = graph.op("Add", x, self._convolution(layer.conv, normed, call))
        x = graph.op("Add", x, self._feed_forward("feed_forward2", layer, x))
        return self._norm("norm_out", layer.norm_out, x)

    def _feed_forward(self, name: str, layer: Any, x: str) -> str:
        module = getattr(layer, name)
        x = self._norm(f"norm_{name}", getattr(layer, f"norm_{name}"), x)
        x = self._silu(self.linear.add(x, f"{self.name}.{name}.linear1", module.linear1.weight))
        weight = module.linear2.weight
        return self.linear.add(x, f"{self.name}.{name}.linear2", weight, factor=0.5, least=LEAST_SILU)

    def _attention(self, attention: Any, x: str, call: Call, positions: Tensor) -> str:
        graph, config = self.graph, self.config
        heads, size, width = config.num_heads, config.head_size, config.hidden_size
        scale = size**-0.5
        weight = torch.cat(
            [attention.q_proj.weight * scale, attention.k_proj.weight, attention.v_proj.weight]
        )
        joined = self.linear.add(x, f"{self.name}.self_attn.qkv", weight)
        query, keys, values = graph.ops("Split", 3, joined, axis=1, num_outputs=3)
        biased = [
            graph.op(
                "Reshape",
                graph.op("Add", query, graph.weight(f"{self.name}.{name}", _flat(bias * scale))),
                call.shape(heads, size),
            )
            for name, bias in (("bias_u", attention.bias_u), ("bias_v", attention.bias_v))
        ]
        query = graph.op("Transpose", biased[0], perm=[0, 2, 1, 3])
        keys, values = (
            graph.op("Transpose", graph.op("Reshape", new, call.shape(heads, size)), perm=[0, 2, 1, 3])
            for new in (keys, values)
        )
        past_keys = self._remember("keys", keys, call.past_rows, heads, size)
        past_values = self._remember("values", values, call.past_rows, heads, size)
        old, new = (
            graph.op("FusedMatMul", query, seen, domain=MICROSOFT, transB=1) for seen in (past_keys, keys)
        )
        scores = graph.op("Concat", old, new, axis=3)
        scores = graph.op("Add", scores, self._by_position(biased[1], call, positions))
        weights = graph.op("Softmax", graph.op("Add", scores, call.mask), axis=3)
        sizes = graph.op("Concat", call.past, call.frames, axis=0)
        old, new = graph.ops("Split", 2, weights, sizes, axis=3)
        mixed = graph.op("Add", graph.op("MatMul", old, past_values), graph.op("MatMul", new, values))
        mixed = graph.op("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = graph.op("Reshape", mixed, graph.constant([-1, width]))
        return self.linear.add(mixed, f"{self.name}.self_attn.o_proj", attention.o_proj.weight)

    def _by_position(self, query: str, call: Call, positions: Tensor) -> str:
        """Scores of distances [B, heads, N, P + N] for queries [B, N, heads, size].

        A table has no stream in it, so the queries of all streams are multiplied with it at once.
        """
        graph, heads, size = self.graph, self.config.num_heads, self.config.head_size
        table = graph.weight(f"{self.name}.positions", positions.detach().numpy())
        table = graph.op("Slice", table, *call.table, graph.constant([1]))
        query = graph.op("Transpose", query, perm=[2, 0, 1, 3])
        query = graph.op("Reshape", query, graph.constant([heads, -1, size]))
        scores = graph.op("FusedMatMul", query, table, domain=MICROSOFT, transB=1)
        # `model.attention._relative_shift`
        head, one, last = graph.constant([heads]), graph.constant([1]), graph.constant([2])
        shape = graph.op("Concat", head, call.batch, graph.constant([-1]), axis=0)
        begin = graph.op("Sub", call.frames, one)
        width = graph.op("Sub", call.span, one)
        end = graph.op("Add", begin, graph.op("Mul", call.frames, width))
        scores = graph.op("Slice", graph.op("Reshape", scores, shape), begin, end, last)
        shape = graph.op("Concat", head, call.batch, call.frames, width, axis=0)
        keys = graph.op("Add", call.past, call.frames)
        scores = graph.op(
            "Slice", graph.op("Reshape", scores, shape), graph.constant([0]), keys, graph.constant([3])
        )
        return graph.op("Transpose", scores, perm=[1, 0, 2, 3])

    def _convolution(self, conv: Any, x: str, call: Call) -> str:
        graph, width, taps = self.graph, self.config.hidden_size, self.config.conv_kernel_size
        name = f"{self.name}.conv"
        x = self.linear.add(x, f"{name}.pointwise_conv1", conv.pointwise_conv1.weight.squeeze(2))
        value, gate = graph.ops("Split", 2, x, axis=1, num_outputs=2)
        gated = graph.op("Mul", graph.op("Mul", value, graph.op("Sigmoid", gate)), call.real)
        one, size = graph.constant([1]), graph.constant([width])
        shape = graph.op("Concat", call.batch, one, call.frames, size, axis=0)
        gated = graph.op("Reshape", gated, shape)
        past = self._remember("gated", gated, call.gated_rows, 1, width)
        window = graph.op("Transpose", graph.op("Concat", past, gated, axis=2), perm=[0, 3, 1, 2])
        kernel = conv.depthwise_conv.weight.detach().numpy().reshape(width, 1, 1, taps)
        y = graph.op("Conv", window, self.linear.stored(f"{name}.depthwise_conv", kernel), group=width)
        y = graph.op("Transpose", y, perm=[0, 2, 3, 1])
        y = graph.op("Reshape", y, graph.constant([-1, width]))
        y = self._silu(self._norm("conv.norm", conv.norm, y))
        weight = conv.pointwise_conv2.weight.squeeze(2)
        return self.linear.add(y, f"{name}.pointwise_conv2", weight, least=LEAST_SILU)

    def _remember(self, kind: str, new: str, rows: str, parts: int, size: int) -> str:
        """Make new frames [B, parts, N, size] an output, and return the old ones."""
        graph, half = self.graph, self.state is np.float16
        layers = self.index + 1
        memory = graph.input(graphs.layer_inputs(kind, layers)[-1], [f"{kind}_memory", size], self.state)
        past = graph.op("Gather", memory, rows, axis=0)
        if half:
            past = graph.op("Cast", past, to=_FLOAT)
            new = graph.op("Cast", new, to=_FLOAT16)
        graph.output(
            graphs.layer_outputs(kind, layers)[-1], new, ["batch", parts, "new_frames", size], self.state
        )
        return past

    def _norm(self, name: str, norm: nn.LayerNorm, x: str) -> str:
        parameters = [
            self.graph.weight(f"{self.name}.{name}.{kind}", _flat(getattr(norm, kind)))
            for kind in ("weight", "bias")
        ]
        return self.graph.op("LayerNormalization", x, *parameters, axis=-1, epsilon=norm.eps)

    def _silu(self, x: str) -> str:
        return self.graph.op("QuickGelu", x, domain=MICROSOFT, alpha=1.0)


def _flat(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().numpy()
    return array.reshape(-1)
