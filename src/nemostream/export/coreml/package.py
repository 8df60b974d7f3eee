"""What a saved ``.mlpackage`` is made of: operations, shapes, and how its weights are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemostream.mil.package import read_model

SPECIFICATIONS = {8: "iOS 17, macOS 14", 9: "iOS 18, macOS 15"}


@dataclass(frozen=True)
class TensorType:
    """Name, dtype such as "fp16" or "int32", and shape of a value; None is a size that varies."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def is_integer(self) -> bool:
        """True for whole numbers, signed or not."""
        return "int" in self.dtype


@dataclass(frozen=True)
class Operation:
    """An operation that runs; constants are not among them.

    Attributes:
        type: of MIL, such as "linear".
        inputs: the values that other operations or the caller computed.
        outputs: its results.
    """

    type: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True)
class Package:
    """A model.

    Attributes:
        inputs: of the model.
        outputs: of the model.
        operations: in order, without constants and what expands them.
        weights: how values of constants are stored, such as "int8" or "fp16" -> how many values.
        compressed: operations that expand weights -> how many, such as ``{"constexpr_lut_to_dense": 61}``.
        needs: the first systems that load it.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    operations: tuple[Operation, ...]
    weights: Mapping[str, int]
    compressed: Mapping[str, int]
    needs: str


def read_package(path: Path) -> Package:
    """Read an ``.mlpackage`` folder.

    Raises:
        CheckpointError: if the package is incomplete, or not an ML program.
        BackendError: if coremltools is missing.
    """
    model, _ = read_model(path)
    function = model.mlProgram.functions["main"]
    block = function.block_specializations[function.opset]
    inputs = tuple(_tensor(value) for value in function.inputs)
    types = {value.name: value for value in inputs}
    constants, operations = set(), []
    weights: Counter[str] = Counter()
    compressed: Counter[str] = Counter()
    for found in block.operations:
        outputs = tuple(_tensor(value) for value in found.outputs)
        types |= {value.name: value for value in outputs}
        if found.type == "const" or found.type.startswith("constexpr_"):
            constants |= {value.name for value in outputs}
            compressed[found.type] += found.type != "const"
            dtype = _stored(found, types)
            if dtype is not None:
                weights[dtype] += int(np.prod([size or 1 for size in outputs[0].shape]))
            continue
        given = tuple(types[name] for name in _names(found) if name not in constants)
        operations.append(Operation(found.type, given, outputs))
    results = tuple(types[name] for name in block.outputs)
    needs = SPECIFICATIONS.get(
        model.specificationVersion, f"CoreML specification {model.specificationVersion}"
    )
    return Package(inputs, results, tuple(operations), weights, +compressed, needs)


def _names(operation: Any) -> Iterator[str]:
    for argument in operation.inputs.values():
        yield from (binding.name for binding in argument.arguments if binding.WhichOneof("binding") == "name")


def _stored(operation: Any, types: Mapping[str, TensorType]) -> str | None:
    """How a constant's values are stored; None for one that is in the program itself, such as an axis."""
    if operation.type == "const":
        value = operation.attributes["val"]
        return _tensor(operation.outputs[0]).dtype if value.WhichOneof("value") == "blobFileValue" else None
    for name in ("lut", "quantized_data", "data"):
        stored = _argument(operation, name, types)
        if stored is None:
            continue
        if name == "lut":
            return f"{int(np.log2(max(size or 1 for size in stored.shape)))}-bit palette"
        return stored.dtype
    return None


def _argument(operation: Any, name: str, types: Mapping[str, TensorType]) -> TensorType | None:
    """Type of an argument, wherever this version of the operation has it."""
    if name in operation.attributes:
        return _tensor(operation.attributes[name], name)
    if name not in operation.inputs:
        return None
    binding = operation.inputs[name].arguments[0]
    return types[binding.name] if binding.WhichOneof("binding") == "name" else _tensor(binding.value, name)


def _tensor(value: Any, name: str | None = None) -> TensorType:
    from coremltools.proto import MIL_pb2

    tensor = value.type.tensorType
    dtype = MIL_pb2.DataType.Name(tensor.dataType).lower().replace("float", "fp")
    shape = tuple(
        int(size.constant.size) if size.WhichOneof("dimension") == "constant" else None
        for size in tensor.dimensions
    )
    return TensorType(value.name if name is None else name, dtype, shape)
