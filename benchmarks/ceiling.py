"""The least that the encoder's matrix products can take here: ONNX Runtime's int8 products, nothing else."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime as ort

from nemostream.checkpoints.names import expected_shapes
from nemostream.config import ModelConfig
from nemostream.export.graph import MICROSOFT, GraphBuilder

_LAYERS = 6  # enough that their 150 MB do not stay in any cache; the rest is counted in proportion


def matrix_parameters(config: ModelConfig) -> int:
    """Weights that every encoder step multiplies with: the layers' matrices, but not the position's."""
    return sum(
        int(np.prod(shape))
        for name, shape in expected_shapes(config).items()
        if name.startswith("encoder.layers.")
        and name.endswith("weight")
        and "norm" not in name
        and "relative_k" not in name
        and "depthwise" not in name
    )


class Ceiling:
    """A stack of the matrices of `_LAYERS` layers, with ONNX Runtime's fused dynamic-int8 product.

    Its inputs share one scale, which no real runtime can afford, so it is a little faster than what is
    possible.
    """

    def __init__(self, config: ModelConfig, threads: int) -> None:
        self._width, inner = config.hidden_size, config.intermediate_size
        generator = np.random.default_rng(0)
        pairs, size = [(self._width, inner), (inner, self._width)], 0
        target = matrix_parameters(config) * _LAYERS // config.num_layers
        with tempfile.TemporaryDirectory() as folder:
            graph = GraphBuilder(Path(folder) / "stack.onnx")
            x = graph.input("x", ["rows", self._width])
            while size < target:
                for inputs, outputs in pairs:
                    matrix = generator.integers(-127, 128, (inputs, outputs), np.int8)
                    scale = np.full(outputs, 1 / (74 * inputs**0.5), np.float32)
                    x = graph.op(
                        "DynamicQuantizeMatMul",
                        x,
                        graph.weight("matrix", matrix),
                        graph.weight("scale", scale),
                        domain=MICROSOFT,
                    )
                    size += inputs * outputs
            graph.output("y", x, ["rows", self._width])
            graph.save()
            options = ort.SessionOptions()
            options.intra_op_num_threads = threads
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self._session = ort.InferenceSession(str(Path(folder) / "stack.onnx"), options)
        self._factor = matrix_parameters(config) / size

    def seconds(self, rows: int, repeats: int = 11) -> float:
        """Median time of all the encoder's products with inputs of so many rows."""
        x = np.random.default_rng(0).standard_normal((rows, self._width), dtype=np.float32)
        taken = []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            self._session.run(None, {"x": x})
            taken.append(time.perf_counter() - began)
        return median(taken[1:]) * self._factor
