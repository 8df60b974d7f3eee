"""Predictor and joint weights out of ``decoder.onnx`` and ``joiner.onnx``.

An exporter that kept the parameters' names is read by name. Others (torch's, which repacks the LSTM and
transposes linear layers) are read by what the weights do in the graph: the looked-up table is the embedding,
the LSTM nodes follow one another, and the last matrix product is the projection or the head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nemostream.checkpoints.files import optional_module
from nemostream.checkpoints.names import nemo_to_canonical
from nemostream.errors import CheckpointError

DECODER = "decoder.onnx"
JOINER = "joiner.onnx"

Weights = dict[str, npt.NDArray[Any]]
_REMEDY = "export it again from the original checkpoint, as decoder.safetensors"


def read_onnx_decoder(folder: Path) -> Weights:
    """Return the ``decoder.*`` and ``joint.head.*`` weights under their canonical names.

    Raises:
        CheckpointError: if a file is missing or damaged, or its graph is not an LSTM predictor or a joint.
        BackendError: if onnx is not installed.
    """
    return _predictor(folder / DECODER) | _head(folder / JOINER)


class _Graph:
    """An ONNX graph and its constant arrays."""

    def __init__(self, path: Path) -> None:
        onnx = optional_module("onnx", "export", f"Reading {path.name}")
        try:
            model = onnx.load(str(path))
            self.path = path
            self.nodes = list(model.graph.node)
            self.arrays: Weights = {
                item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer
            }
            for node in self.nodes:
                if node.op_type == "Constant" and node.attribute[0].HasField("t"):
                    self.arrays[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
        except Exception as error:  # onnx and protobuf raise many classes on a bad file
            raise CheckpointError(
                f"{path} cannot be read as ONNX ({error}); fetch the checkpoint again."
            ) from error
        if model.producer_name == "nemostream":  # its weights are transposed, and biases added together
            raise CheckpointError(
                f"{path} was made to be run, and decoder.safetensors, which came with it, is missing; "
                "fetch the folder again."
            )

    def named(self, prefixes: tuple[str, ...]) -> Weights:
        """Return the initialisers that have canonical (or NeMo) names with one of these prefixes."""
        renamed = {nemo_to_canonical(name): array for name, array in self.arrays.items()}
        return {
            name: array for name, array in renamed.items() if name is not None and name.startswith(prefixes)
        }

    def constant(self, name: str, what: str) -> npt.NDArray[Any]:
        """Return a node input that has to be a constant."""
        if name not in self.arrays:
            raise CheckpointError(f"{self.path} computes its {what} instead of storing it; {_REMEDY}.")
        return self.arrays[name]

    def last_linear(self, prefix: str) -> Weights:
        """Return weight [out, in] and bias [out] of the last linear layer in the graph."""
        for node in reversed(self.nodes):
            if node.op_type not in ("Gemm", "MatMul") or node.input[1] not in self.arrays:
                continue
            weight = self.arrays[node.input[1]]
            if node.op_type == "Gemm":
                if not any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
                    weight = weight.T
                bias = self.constant(node.input[2], "bias") if len(node.input) > 2 else None
            else:
                weight, bias = weight.T, self._added_to(node.output[0])
            if bias is not None and bias.shape == weight.shape[:1]:
                return {f"{prefix}.weight": np.ascontiguousarray(weight), f"{prefix}.bias": bias}
        raise CheckpointError(f"{self.path} has no linear layer with a bias for {prefix}; {_REMEDY}.")

    def _added_to(self, value: str) -> npt.NDArray[Any] | None:
        for node in self.nodes:
            if node.op_type == "Add" and value in node.input:
                other = node.input[1] if node.input[0] == value else node.input[0]
                return self.arrays.get(other)
        return None


def _predictor(path: Path) -> Weights:
    graph = _Graph(path)
    named = graph.named(("decoder.embedding.", "decoder.lstm.", "decoder.decoder_projector."))
    if "decoder.embedding.weight" in named and "decoder.lstm.weight_ih_l0" in named:
        return named
    tables = [
        graph.arrays[node.input[0]]
        for node in graph.nodes
        if node.op_type == "Gather" and node.input[0] in graph.arrays
    ]
    embedding = next((table for table in tables if table.ndim == 2 and table.dtype.kind == "f"), None)
    recurrent = [node for node in graph.nodes if node.op_type == "LSTM"]
    if embedding is None or not recurrent:
        raise CheckpointError(f"{path} has no embedding and LSTM of a predictor; {_REMEDY}.")
    weights: Weights = {"decoder.embedding.weight": embedding}
    for layer, node in enumerate(recurrent):
        kernel, recurrence = (graph.constant(node.input[i], "LSTM weights")[0] for i in (1, 2))
        biases = np.split(graph.constant(node.input[3], "LSTM biases")[0], 2)
        weights[f"decoder.lstm.weight_ih_l{layer}"] = _torch_gates(kernel)
        weights[f"decoder.lstm.weight_hh_l{layer}"] = _torch_gates(recurrence)
        weights[f"decoder.lstm.bias_ih_l{layer}"] = _torch_gates(biases[0])
        weights[f"decoder.lstm.bias_hh_l{layer}"] = _torch_gates(biases[1])
    return weights | graph.last_linear("decoder.decoder_projector")


def _head(path: Path) -> Weights:
    graph = _Graph(path)
    named = graph.named(("joint.head.",))
    return named if len(named) == 2 else graph.last_linear("joint.head")


def _torch_gates(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Reorder the gates along the first axis from ONNX (i, o, f, c) to torch (i, f, c, o)."""
    entry, output, forget, cell = np.split(array, 4)
    return np.concatenate([entry, forget, cell, output])
