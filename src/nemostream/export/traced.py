"""From a torch module to an ONNX file, by tracing: for layouts whose graphs are the reference's own.

The tracing (TorchScript-based) exporter is used, since it takes seconds where the ``torch.export``-based one
takes minutes for 24 layers with dynamic shapes. It traces the structure alone; the weights are put in
afterwards, which has no 2 GB limit, and what depends on weights alone (transposes, LSTM gate order) is
computed then, so that every matrix product has a plain initialiser.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nemostream.checkpoints.files import optional_module
from nemostream.runtimes.onnx_graphs import DATA_SUFFIX

Axes = dict[str, dict[int, str]]  # tensor name -> dimension -> name of its size

OPSET = 18
SINGLE_FILE_BYTES = 1 << 30  # larger graphs get a data file; protobuf itself ends at 2 GiB
_PACKAGES = ("onnx", "onnx_ir", "onnxscript.optimizer")
_NO_LIMIT = 1 << 62  # bytes of constants that the optimiser may fold


def check_packages() -> None:
    """Raise `BackendError` if a package that exporting needs is missing."""
    for name in _PACKAGES:
        _package(name)


def write_graph(
    module: nn.Module,
    arguments: tuple[Any, ...],
    names: list[str],
    outputs: list[str],
    axes: Axes,
    path: Path,
    metadata: Mapping[str, str] | None = None,
) -> list[str]:
    """Trace a module, put its weights in, simplify and write.

    Args:
        module: what to trace, on the CPU; it is left in evaluation mode.
        arguments: of its forward; tensors, and lists of them, which become one input each.
        names: of the inputs.
        outputs: their names.
        axes: the dimensions that may vary.
        path: the file; a large graph gets ``path.data`` beside it.
        metadata: what the file says about itself.

    Returns:
        the names of the files that were written.
    """
    onnx, ir, optimizer = (_package(name) for name in _PACKAGES)
    stream: Any = io.BytesIO()  # the annotations of torch know only the exporter that needs a path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated, and that LSTMs may be of fixed batch size
        torch.onnx.export(
            module.eval(),
            arguments,
            stream,
            dynamo=False,
            opset_version=OPSET,
            input_names=names,
            output_names=outputs,
            dynamic_axes=axes,
            export_params=False,
            do_constant_folding=False,
        )
    model = ir.from_proto(onnx.load_from_string(stream.getvalue()))
    _insert_weights(model, module.state_dict(), names, ir)
    _simplify(model, ir, optimizer)
    model.metadata_props.update(metadata or {})
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    data = path.name + DATA_SUFFIX if size > SINGLE_FILE_BYTES else None
    ir.save(model, path, external_data=data)
    return [path.name] if data is None else [path.name, data]


def _insert_weights(model: Any, state: Mapping[str, Tensor], names: list[str], ir: Any) -> None:
    """Turn the inputs that stand for weights into initialisers, and drop what else is not an input."""
    graph = model.graph
    for value in list(graph.inputs):
        if value.name in names:
            continue
        graph.inputs.remove(value)
        if value.name in state:
            array = np.ascontiguousarray(state[value.name].numpy())
            value.const_value = ir.tensor(array, name=value.name)
            graph.register_initializer(value)


def _simplify(model: Any, ir: Any, optimizer: Any) -> None:
    """Compute what depends on constants alone, and compute nothing twice.

    onnxscript's whole ``optimize`` is left aside: its rewrite rules find nothing here and take minutes.
    """
    optimizer.fold_constants(model, input_size_limit=_NO_LIMIT, output_size_limit=_NO_LIMIT)
    passes = _package("onnx_ir.passes.common")
    ir.passes.Sequential(
        passes.IdentityEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
    )(model)


def _package(name: str) -> Any:
    return optional_module(name, "export", "Exporting to ONNX")
