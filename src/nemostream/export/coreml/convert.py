"""From a torch module to an ``.mlpackage`` that keeps a contract, with coremltools; any system will do."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from nemostream.checkpoints.files import optional_module
from nemostream.errors import BackendError
from nemostream.export.coreml.weights import Weights, compress
from nemostream.runtimes.coreml_contract import Graph, Value

Target = Literal["iOS17", "iOS18"]  # the first system that loads a graph; macOS 14 and 15 are their equals

MODEL_FILE = Path("Data/com.apple.CoreML/model.mlmodel")
_DEBUG_FILE = "executorch_debug_handle_mapping.json"
_NUMPY = {"float32": np.float32, "float16": np.float16, "int32": np.int32}
_FRESH_AS = {"float32": torch.float32, "float16": torch.float32, "int32": torch.int32}  # the module is fp32
# coremltools knows `and` of booleans by its other name only
_DECOMPOSITIONS = {torch.ops.aten.__and__.Tensor: torch.ops.aten.logical_and.default}


def converter_package() -> Any:
    """Coremltools, without what it says while it is imported on a system that can't run its models.

    Raises:
        BackendError: if it is not installed.
    """
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    return optional_module("coremltools", "coreml", "Converting to CoreML")


def write_package(
    module: nn.Module,
    graph: Graph,
    path: Path,
    *,
    target: Target,
    weights: Weights = "fp16",
    precision: Literal["fp16", "fp32"] = "fp16",
    description: str = "",
) -> None:
    """Convert a module and save it.

    Args:
        module: takes and returns tensors in the order of the contract.
        graph: the contract.
        path: of the ``.mlpackage`` folder.
        target: deployment target.
        weights: how matrices are stored.
        precision: in what the graph computes.
        description: for whoever opens it in Xcode.

    Raises:
        BackendError: if coremltools is missing, or what it made does not keep the contract.
    """
    ct = converter_package()
    arguments = tuple(torch.zeros(value.shape, dtype=_FRESH_AS[value.dtype]) for value in graph.inputs)
    with torch.no_grad(), _quiet():
        program = torch.export.export(module.eval(), arguments).run_decompositions(_DECOMPOSITIONS)
        model = ct.convert(
            program,
            inputs=[ct.TensorType(v.name, shape=v.shape, dtype=_NUMPY[v.dtype]) for v in graph.inputs],
            outputs=[ct.TensorType(v.name, dtype=_NUMPY[v.dtype]) for v in graph.outputs],
            minimum_deployment_target=getattr(ct.target, target),
            compute_precision=getattr(ct.precision, {"fp16": "FLOAT16", "fp32": "FLOAT32"}[precision]),
            skip_model_load=True,
        )
        model = compress(model, weights)
        model.short_description = description
        check_contract(model.get_spec().description, graph)
        model.save(str(path))
    (path / _DEBUG_FILE).unlink(missing_ok=True)
    (path / MODEL_FILE).chmod(0o644)  # coremltools leaves it to its owner alone


def check_contract(description: Any, graph: Graph) -> None:
    """Raise `BackendError` unless a model's ``description`` has the inputs and outputs of ``graph`` only."""
    for side, expected in (("input", graph.inputs), ("output", graph.outputs)):
        found = [_value(feature) for feature in getattr(description, side)]
        if sorted(found, key=lambda value: value.name) != sorted(expected, key=lambda value: value.name):
            raise BackendError(
                f"coremltools gave the graph {graph.name} the {side}s {found}, and its contract asks for "
                f"{list(expected)}; install coremltools 9.0."
            )


def _value(feature: Any) -> Value:
    array = feature.type.multiArrayType
    name = array.ArrayDataType.Name(array.dataType).lower()
    return Value(feature.name, tuple(array.shape), name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and warnings of the converter, which mean nothing to a user, off the terminal."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
