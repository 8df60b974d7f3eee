"""`GraphBuilder`: writes an ONNX file node by node, with its weights on disk instead of in memory.

Weights go to a data file the moment they are added, one tensor at a time, so that a model of any size is
exported with the memory of its largest matrix. A graph that turns out small takes its weights back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemostream.checkpoints.files import optional_module
from nemostream.runtimes.onnx_graphs import DATA_SUFFIX

OPSET = 18
IR_VERSION = 9  # what ONNX Runtime 1.22 and all later ones read
MICROSOFT = "com.microsoft"  # operators of ONNX Runtime itself
SINGLE_FILE_BYTES = 64 << 20  # larger graphs get a data file, which ONNX Runtime maps instead of parsing
_INLINE_BYTES = 1024  # shape operators read small constants while the graph is loaded
_ALIGNMENT = 4096  # a page, so that a tensor can be mapped by itself

Array = NDArray[Any]
Shape = Sequence[str | int]  # a name for a dimension that may vary


def onnx_package() -> Any:
    """The package ``onnx``.

    Raises:
        BackendError: if it is not installed; the message says how to.
    """
    return optional_module("onnx", "export", "Exporting to ONNX")


class GraphBuilder:
    """Builds one graph. Values are known by their names, which `op` and the others return.

    Args:
        path: the file to write; a large graph gets ``path.data`` beside it.
    """

    def __init__(self, path: Path) -> None:
        self._onnx = onnx_package()
        self._path, self._data_path = path, path.with_name(path.name + DATA_SUFFIX)
        self._data = self._data_path.open("wb")
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._initialisers: list[Any] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._names: set[str] = set()

    def input(self, name: str, shape: Shape, dtype: type[np.generic] = np.float32) -> str:
        """Declare an input of the graph."""
        self._inputs.append(self._value(name, shape, dtype))
        return name

    def output(self, name: str, value: str, shape: Shape, dtype: type[np.generic] = np.float32) -> None:
        """Make a value an output called ``name``."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._value(name, shape, dtype))

    def op(self, kind: str, *inputs: str, domain: str = "", name: str = "", **attributes: object) -> str:
        """Add a node with one output."""
        return self.ops(kind, 1, *inputs, domain=domain, name=name, **attributes)[0]

    def ops(
        self, kind: str, outputs: int, *inputs: str, domain: str = "", name: str = "", **attributes: object
    ) -> list[str]:
        """Add a node with several outputs."""
        base = self._unique(name or kind)
        names = [base] if outputs == 1 else [f"{base}:{index}" for index in range(outputs)]
        node = self._onnx.helper.make_node(kind, list(inputs), names, name=base, domain=domain, **attributes)
        self._nodes.append(node)
        return names

    def constant(self, value: object, dtype: type[np.generic] = np.int64) -> str:
        """A small constant; equal ones are one."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.weight("constant", array)
        return self._constants[key]

    def weight(self, name: str, array: Array) -> str:
        """Add an initialiser; the array is on disk when this returns."""
        name, array = self._unique(name), np.asarray(array, order="C")
        tensor = self._onnx.TensorProto()
        tensor.name, tensor.data_type = name, self._type(array.dtype)
        tensor.dims.extend(array.shape)
        if array.nbytes <= _INLINE_BYTES:
            tensor.raw_data = array.tobytes()
        else:
            self._data.write(b"\0" * (-self._data.tell() % _ALIGNMENT))
            tensor.data_location = self._onnx.TensorProto.EXTERNAL
            values = {
                "location": self._data_path.name,
                "offset": self._data.tell(),
                "length": array.nbytes,
            }
            for key, value in values.items():
                tensor.external_data.add(key=key, value=str(value))
            self._data.write(array.data)
        self._initialisers.append(tensor)
        return name

    def save(self) -> list[str]:
        """Write the graph; returns the names of its files."""
        size = self._data.tell()
        self._data.close()
        small = size <= SINGLE_FILE_BYTES
        if small:
            self._take_back()
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, self._path.stem, self._inputs, self._outputs, self._initialisers
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="nemostream")
        model.ir_version = IR_VERSION
        self._path.write_bytes(model.SerializeToString())
        return [self._path.name] if small else [self._path.name, self._data_path.name]

    def _take_back(self) -> None:
        data = self._data_path.read_bytes()
        for tensor in self._initialisers:
            if tensor.external_data:
                values = {entry.key: entry.value for entry in tensor.external_data}
                offset = int(values["offset"])
                del tensor.external_data[:]
                tensor.data_location = self._onnx.TensorProto.DEFAULT
                tensor.raw_data = data[offset : offset + int(values["length"])]
        self._data_path.unlink()

    def _value(self, name: str, shape: Shape, dtype: type[np.generic]) -> Any:
        self._names.add(name)
        return self._onnx.helper.make_tensor_value_info(name, self._type(np.dtype(dtype)), list(shape))

    def _type(self, dtype: np.dtype[Any]) -> int:
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def _unique(self, name: str) -> str:
        found, count = name, 1
        while found in self._names:
            found, count = f"{name}_{count}", count + 1
        self._names.add(found)
        return found
