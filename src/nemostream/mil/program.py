"""`Program`: the operations of a function in their order, each value dropped after its last use.

Numbers that the program declares as fp16 are held as float32. Whether they are rounded to fp16 after every
operation is the caller's choice; sums inside one operation are taken in fp32 either way, as they are on the
Neural Engine as far as is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nemostream.errors import BackendError, CheckpointError
from nemostream.mil.operations import OPERATIONS
from nemostream.mil.values import DTYPES, Array, WeightFile, constant, shape_of

Signature = dict[str, tuple[tuple[int, ...], str]]  # name -> shape, dtype

_CONSTANT = "const"
_FEATURE_DTYPES = {65568: "float32", 131104: "int32", 65552: "float16", 65600: "float64"}


@dataclass(slots=True)
class _Operation:
    kind: str
    arguments: dict[str, str | list[str]]  # parameter -> name of a value, or names
    given: dict[str, Any]  # parameter -> message of a constant that stands in the operation itself
    outputs: tuple[str, ...]
    dtypes: tuple[Any, ...]
    drop: tuple[str, ...] = field(default=())  # values that nobody needs afterwards


class Program:
    """One function of a saved program.

    Attributes:
        inputs: names, shapes and dtypes.
        outputs: names, shapes and dtypes.
    """

    def __init__(
        self, function: Any, description: Any, weights: WeightFile, name: str, *, fp16: bool
    ) -> None:
        self.name, self._weights, self._fp16 = name, weights, fp16
        block = function.block_specializations[function.opset]
        self._operations: list[_Operation] = []
        self._constants: dict[str, Any] = {}  # name -> message, or the operation that decompresses it
        self._ready: dict[str, Array] = {}  # constants that were used before
        for message in block.operations:
            self._add(message)
        results = list(block.outputs)
        self.inputs = {value.name: _tensor(value.type) for value in function.inputs}
        declared = {feature.name: _feature(feature) for feature in description.output}
        self.outputs: Signature = {name: declared[name] for name in results if name in declared}
        self._drop_after_last_use(set(results))

    @property
    def operations(self) -> list[str]:
        """Kinds of the operations that are executed, in order."""
        return [operation.kind for operation in self._operations]

    @property
    def compressed(self) -> dict[str, str]:
        """Names of the constants that are stored compressed -> the operation that decompresses them."""
        return {name: item.kind for name, item in self._constants.items() if isinstance(item, _Operation)}

    def constant(self, name: str) -> Array:
        """A constant by its name, decompressed if it is stored compressed; fp16 ones as float32."""
        if name not in self._ready:
            source = self._constants[name]
            if isinstance(source, _Operation):
                (value,) = self._execute(source, {})
                value = value.astype(source.dtypes[0])  # weights are rounded whatever is asked for results
            else:
                value = constant(source, self._weights)
            self._ready[name] = value.astype(np.float32) if value.dtype == np.float16 else value
        return self._ready[name]

    def __call__(self, inputs: Mapping[str, Array], keep: Iterable[str] = ()) -> dict[str, Array]:
        """Execute the function.

        Args:
            inputs: an array for each input, of its shape.
            keep: names of inner values to return as well.

        Returns:
            the outputs in their declared dtypes; with ``fp16=False`` fp16 ones stay float32.

        Raises:
            BackendError: if an input is missing, has another shape, or an operation is not known.
        """
        values = self._checked(inputs)
        kept = set(keep)
        found: dict[str, Array] = {}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for operation in self._operations:
                results = self._execute(operation, values)
                for name, value in zip(operation.outputs, results, strict=True):
                    values[name] = value
                    if name in kept:
                        found[name] = value
                for name in operation.drop:
                    del values[name]
        for name, (_, dtype) in self.outputs.items():
            value = values[name] if name in values else self.constant(name)
            found[name] = value if dtype == "float16" and not self._fp16 else value.astype(dtype)
        return found

    def _checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        values: dict[str, Array] = {}
        for name, (shape, dtype) in self.inputs.items():
            if name not in inputs:
                raise BackendError(f"{self.name}: the input {name!r} is missing.")
            value = np.asarray(inputs[name])
            if value.shape != shape:
                raise BackendError(f"{self.name}: {name} has shape {list(value.shape)}, not {list(shape)}.")
            values[name] = self._typed(value, np.dtype(dtype).type)
        return values

    def _execute(self, operation: _Operation, values: dict[str, Array]) -> list[Array]:
        if operation.kind not in OPERATIONS:
            raise BackendError(
                f"{self.name} has the operation {operation.kind!r}, which the MIL runner does not know; "
                f"it knows {', '.join(sorted(OPERATIONS))}."
            )
        arguments: dict[str, Any] = {}
        for parameter, source in operation.arguments.items():
            if isinstance(source, list):
                arguments[parameter] = [self._value(name, values) for name in source]
            else:
                arguments[parameter] = self._value(source, values)
        for parameter, message in operation.given.items():
            arguments[parameter] = constant(message, self._weights)
        try:
            result = OPERATIONS[operation.kind](**arguments)
        except (TypeError, ValueError, LookupError) as error:
            raise BackendError(
                f"{self.name}: {operation.outputs[0]} = {operation.kind} failed: {error}."
            ) from error
        results = list(result) if isinstance(result, list | tuple) else [result]
        return [
            self._typed(np.asarray(value), dtype)
            for value, dtype in zip(results, operation.dtypes, strict=True)
        ]

    def _value(self, name: str, values: dict[str, Array]) -> Array:
        return values[name] if name in values else self.constant(name)

    def _typed(self, value: Array, dtype: Any) -> Array:
        """A value in the type that the program declares: fp16 as float32, rounded if that was asked for."""
        if dtype is not np.float16:
            return value.astype(dtype, copy=False)
        return (value.astype(np.float16) if self._fp16 else value).astype(np.float32, copy=False)

    def _add(self, message: Any) -> None:
        outputs = tuple(output.name for output in message.outputs)
        if message.type == _CONSTANT:
            self._constants[outputs[0]] = message.attributes["val"]
            return
        arguments: dict[str, str | list[str]] = {}
        given = {name: value for name, value in message.attributes.items() if name != "name"}
        for parameter, argument in message.inputs.items():
            names = []
            for position, binding in enumerate(argument.arguments):
                if binding.WhichOneof("binding") == "name":
                    names.append(binding.name)
                else:
                    names.append(f"{outputs[0]}.{parameter}.{position}")
                    self._constants[names[-1]] = binding.value
            # `values` of concat and stack is a list whatever its length
            arguments[parameter] = names if parameter == "values" or len(names) != 1 else names[0]
        dtypes = tuple(DTYPES.get(output.type.tensorType.dataType) for output in message.outputs)
        if None in dtypes or message.blocks:
            raise CheckpointError(
                f"{self.name}: {message.type} has a result or a block of a kind that is not known."
            )
        operation = _Operation(message.type, arguments, given, outputs, dtypes)
        if message.type.startswith("constexpr_"):
            self._constants[outputs[0]] = operation
        else:
            self._operations.append(operation)

    def _drop_after_last_use(self, needed: set[str]) -> None:
        seen = set(needed)
        for operation in reversed(self._operations):
            used: set[str] = set(operation.outputs)
            for source in operation.arguments.values():
                used |= set(source) if isinstance(source, list) else {source}
            operation.drop = tuple(used - seen - set(self._constants))
            seen |= used


def _tensor(value_type: Any) -> tuple[tuple[int, ...], str]:
    tensor = value_type.tensorType
    return shape_of(tensor), np.dtype(DTYPES[tensor.dataType]).name


def _feature(feature: Any) -> tuple[tuple[int, ...], str]:
    array = feature.type.multiArrayType
    return tuple(array.shape), _FEATURE_DTYPES[array.dataType]
