"""The encoder step as an ONNX graph: stem, mask, layers, prompt and projection.

It computes what `nemostream.model.encoder.Encoder.step` and `Network.project` compute, arranged for ONNX
Runtime on a CPU. What differs, and why:

- Rows of all streams lie below each other, [B N, D], so that every matrix product is one product.
- Queries, keys and values come out of one product, whose scale has 1 / sqrt(head size) in it.
- Old and new keys meet in the scores, not before: nothing is copied to lie side by side.
- The depthwise convolution is written in two dimensions, of which ONNX Runtime has the ten times faster
  kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from nemostream.config import SUBSAMPLING_FACTOR
from nemostream.export.graph import GraphBuilder, Shape
from nemostream.export.linear import LinearLayers, Weights
from nemostream.export.onnx_layer import Call, LayerGraph
from nemostream.framing import PHANTOM_MEL_FRAMES
from nemostream.model.attention import MASKED_SCORE
from nemostream.model.network import Network
from nemostream.runtimes import onnx_graphs as graphs

_CHANNELS_LAST, _CHANNELS_SECOND = [0, 2, 3, 1], [0, 3, 1, 2]  # permutations from one to the other


def export_encoder(network: Network, folder: Path, weights: Weights, left: int, max_frames: int) -> list[str]:
    """Write `graphs.ENCODER`.

    Args:
        network: the model.
        folder: where to.
        weights: their form; other forms than fp32 also keep the past of streams in fp16.
        left: most frames of attention context.
        max_frames: most new frames of a call.

    Returns:
        the names of its files.
    """
    return _EncoderGraph(network, folder, weights).write(left, max_frames)


class _EncoderGraph:
    def __init__(self, network: Network, folder: Path, weights: Weights) -> None:
        self.network, self.config = network, network.config
        self.graph = GraphBuilder(folder / graphs.ENCODER)
        self.linear = LinearLayers(self.graph, weights)
        self.state: type[np.generic] = np.float32 if weights == "fp32" else np.float16

    def write(self, left: int, max_frames: int) -> list[str]:
        graph, config, encoder = self.graph, self.config, self.network.encoder
        mel = graph.input("mel", ["batch", "rows", config.num_mel_bins])
        lengths = graph.input("mel_lengths", ["batch"], np.int64)
        att_context = graph.input("att_context", ["batch", 2], np.int64)
        seen = graph.input("frames", ["batch"], np.int64)
        x, lengths = self._stem(mel, lengths, seen)
        rows = (
            graph.input("past_rows", ["batch", config.num_heads, "past"], np.int64),
            graph.input("gated_rows", ["batch", 1, config.conv_kernel_size - 1], np.int64),
        )
        call = self._call(mel, lengths, att_context, seen, rows, left, max_frames)
        tables = encoder.position_tables(left, max_frames)
        for index, (layer, table) in enumerate(zip(encoder.layers, tables, strict=True)):
            x = LayerGraph(self.linear, config, index, self.state).add(layer, x, call, table)
        encoded = graph.op("Reshape", self._project(x, call), call.shape(config.joint_hidden_size))
        graph.output("encoded", encoded, ["batch", "new_frames", config.joint_hidden_size])
        graph.output("lengths", lengths, ["batch"], np.int64)
        return graph.save()

    def _stem(self, mel: str, lengths: str, seen: str) -> tuple[str, str]:
        """`Subsampling.forward`, channels last, [B, T, F, C], so that pointwise convolutions are products.

        The convolutions stay in fp32: they are small, and all that follows hangs on them.
        """
        graph, config, stem = self.graph, self.config, self.network.encoder.subsampling
        first = graph.op("Equal", seen, graph.constant(0))
        start = graph.op("Where", first, graph.constant(PHANTOM_MEL_FRAMES), graph.constant(0))
        x = self._mask_time(graph.op("Unsqueeze", mel, graph.constant([3])), start, lengths)
        bins, channels = config.num_mel_bins, 1
        layers: Any = stem.layers
        stages = [(stem.conv_in, None), *((s.depthwise_conv, s.pointwise_conv) for s in layers)]
        names = zip(graphs.stem_inputs(), graphs.stem_outputs(), stages, strict=True)
        for number, (old, new, (strided, pointwise)) in enumerate(names):
            shape: Shape = ["batch", channels, 1, bins]
            last = graph.op("Slice", x, graph.constant([-1]), graph.constant([2**31]), graph.constant([1]))
            graph.output(new, graph.op("Transpose", last, perm=_CHANNELS_SECOND), shape)
            past = graph.op("Transpose", graph.input(old, shape), perm=_CHANNELS_LAST)
            x = graph.op("Concat", past, x, axis=1)
            name = f"encoder.subsampling.{number}"
            bins, channels = bins // 2 + 1, config.subsampling_channels
            one, two = graph.constant(1), graph.constant(2)
            start = graph.op("Div", start, two)
            lengths = graph.op("Div", graph.op("Add", lengths, one), two)
            x = self._strided(x, f"{name}.strided", strided)
            if pointwise is not None:
                x = self._pointwise(x, f"{name}.pointwise", pointwise, bins)
            x = self._mask_time(graph.op("Relu", x), start, lengths)
        x = graph.op("Reshape", x, graph.constant([-1, bins * channels]))
        weight = stem.linear.weight.reshape(-1, channels, bins).transpose(1, 2).flatten(1)
        coarse = self.linear.weights == "int4"
        bias, name = stem.linear.bias, "encoder.subsampling.linear"
        return self.linear.add(x, name, weight, bias, least=0.0, precise=coarse), lengths

    def _strided(self, x: str, name: str, conv: nn.Conv2d) -> str:
        """A convolution of stride 2, [B, T, F, C] -> [B, T / 2, F / 2 + 1, C']."""
        weight, bias = _array(conv.weight), conv.bias
        assert bias is not None
        stored = (self.linear.stored(name, weight), self.graph.weight(f"{name}_bias", _array(bias)))
        x = self.graph.op("Transpose", x, perm=_CHANNELS_SECOND)
        x = self.graph.op("Conv", x, *stored, group=conv.groups, strides=[2, 2], pads=[0, 2, 0, 1])
        return self.graph.op("Transpose", x, perm=_CHANNELS_LAST)

    def _pointwise(self, x: str, name: str, conv: nn.Conv2d, bins: int) -> str:
        """A pointwise convolution of [B, T, F, C]."""
        graph, channels = self.graph, conv.in_channels
        rows = graph.op("Reshape", x, graph.constant([-1, channels]))
        rows = self.linear.add(rows, name, conv.weight.flatten(1), conv.bias, precise=True)
        size = graph.op("Shape", x, start=0, end=2)
        return graph.op("Reshape", rows, graph.op("Concat", size, graph.constant([bins, channels]), axis=0))

    def _mask_time(self, x: str, start: str, lengths: str) -> str:
        """Zero the frames of x [B, T, F, C] outside [start, lengths)."""
        graph = self.graph
        size = graph.op("Squeeze", graph.op("Shape", x, start=1, end=2), graph.constant([0]))
        time = graph.op("Range", graph.constant(0), size, graph.constant(1))
        one = graph.constant([1])
        after = graph.op("GreaterOrEqual", time, graph.op("Unsqueeze", start, one))
        before = graph.op("Less", time, graph.op("Unsqueeze", lengths, one))
        keep = graph.op("Cast", graph.op("And", after, before), to=1)
        return graph.op("Mul", x, graph.op("Unsqueeze", keep, graph.constant([2, 3])))

    def _call(
        self,
        mel: str,
        lengths: str,
        att_context: str,
        seen: str,
        rows: tuple[str, str],
        left: int,
        max_frames: int,
    ) -> Call:
        """Everything that the layers share: sizes, masks, and where the position tables are cut."""
        graph, one = self.graph, self.graph.constant([1])
        batch = graph.op("Shape", mel, start=0, end=1)
        frames = graph.op("Div", graph.op("Shape", mel, start=1, end=2), graph.constant([SUBSAMPLING_FACTOR]))
        past = graph.op("Shape", rows[0], start=2, end=3)
        total = graph.op("Add", past, frames)
        span = graph.op("Add", total, frames)
        begin = graph.op("Sub", graph.constant([left + max_frames]), total)
        mask, real = self._masks(frames, past, att_context, seen, lengths)
        return Call(
            graph=graph,
            batch=batch,
            frames=frames,
            past=past,
            span=span,
            table=(begin, graph.op("Add", begin, span)),
            mask=graph.op("Unsqueeze", mask, one),
            real=graph.op("Reshape", graph.op("Cast", real, to=1), graph.constant([-1, 1])),
            past_rows=rows[0],
            gated_rows=rows[1],
        )

    def _masks(self, frames: str, past: str, att_context: str, seen: str, lengths: str) -> tuple[str, str]:
        """`chunk_mask` as what is added to scores, [B, N, P + N], and which new frames are real, [B, N]."""
        graph = self.graph
        zero, one, axis = graph.constant(0), graph.constant(1), graph.constant([1])
        n, p = (graph.op("Squeeze", size, graph.constant([0])) for size in (frames, past))
        query = graph.op("Range", zero, n, one)
        key = graph.op("Range", graph.op("Neg", p), n, one)
        left, right = graph.ops("Split", 2, att_context, axis=1, num_outputs=2)
        chunk = graph.op("Add", right, one)
        query_chunk = graph.op("Div", query, chunk)
        shifted = graph.op("Div", graph.op("Add", key, graph.op("Mul", chunk, p)), chunk)
        key_chunk = graph.op("Sub", shifted, p)
        behind = graph.op(
            "Sub",
            graph.op("Unsqueeze", query_chunk, graph.constant([2])),
            graph.op("Unsqueeze", key_chunk, axis),
        )
        most = graph.op("Unsqueeze", graph.op("Div", left, chunk), axis)
        visible = graph.op(
            "And", graph.op("GreaterOrEqual", behind, zero), graph.op("LessOrEqual", behind, most)
        )
        filled = graph.op("Neg", graph.op("Unsqueeze", graph.op("Min", seen, p), axis))
        ends = graph.op("Unsqueeze", lengths, axis)
        real_key = graph.op("And", graph.op("GreaterOrEqual", key, filled), graph.op("Less", key, ends))
        visible = graph.op("And", visible, graph.op("Unsqueeze", real_key, axis))
        none, hidden = graph.constant(0.0, np.float32), graph.constant(MASKED_SCORE, np.float32)
        return graph.op("Where", visible, none, hidden), graph.op("Less", query, ends)

    def _project(self, x: str, call: Call) -> str:
        """`Network.project` on rows [B N, D]."""
        graph, network = self.graph, self.network
        if self.config.has_prompt:
            prompt_ids = graph.input("prompt_ids", ["batch"], np.int64)
            projector, inner = network.prompt_projector, self.config.prompt_intermediate_size
            weight, name = projector.linear_1.weight, "prompt_projector.linear_1"
            width = self.config.hidden_size
            x = self.linear.add(x, name, weight[:, :width], projector.linear_1.bias)
            column = self.linear.table(f"{name}.prompts", _array(weight[:, width:]).T.copy(), prompt_ids)
            x = graph.op("Reshape", x, call.shape(inner))
            x = graph.op("Add", x, graph.op("Unsqueeze", column, graph.constant([1])))
            x = graph.op("Reshape", graph.op("Relu", x), graph.constant([-1, inner]))
            second = projector.linear_2
            x = self.linear.add(x, "prompt_projector.linear_2", second.weight, second.bias, least=0.0)
        last = network.encoder_projector  # small, and what it gives decides between tokens
        return self.linear.add(x, "encoder_projector", last.weight, last.bias, precise=True)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().numpy()
    return array
