"""Types and constants of a saved program: protobuf messages to numpy, and the file of weights.

The file begins with a header of 64 bytes. A constant points to a record of 64 bytes in it: the marker
``0xDEADBEEF``, the type of its numbers, their size in bytes and where they begin. Numbers of less than a byte
lie one after the other from the lowest bit. (Format: MILBlob's public ``StorageFormat.hpp``, version 2.)
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemostream.errors import CheckpointError

Array = NDArray[Any]

_SENTINEL = 0xDEADBEEF
_RECORD = struct.Struct("<IIQQ")
# number of a type in the weight file -> how its bytes are read, and bits of a number
_STORED: dict[int, tuple[Any, int]] = {
    1: (np.float16, 16), 2: (np.float32, 32), 3: (np.uint8, 8), 4: (np.int8, 8), 6: (np.int16, 16),
    7: (np.uint16, 16), 8: (np.int8, 4), 9: (np.uint8, 1), 10: (np.uint8, 2), 11: (np.uint8, 4),
    12: (np.uint8, 3), 13: (np.uint8, 6), 14: (np.int32, 32), 15: (np.uint32, 32),
}  # fmt: skip
# number of a type in the program -> its numpy dtype; those of less than a byte are unpacked into one
DTYPES: dict[int, Any] = {
    1: np.bool_, 2: np.str_, 10: np.float16, 11: np.float32, 12: np.float64, 21: np.int8, 22: np.int16,
    23: np.int32, 24: np.int64, 25: np.int8, 31: np.uint8, 32: np.uint16, 33: np.uint32, 34: np.uint64,
    35: np.uint8, 36: np.uint8, 37: np.uint8, 38: np.uint8, 39: np.uint8,
}  # fmt: skip


class WeightFile:
    """``weight.bin`` of a package, read where it is pointed to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes: NDArray[np.uint8] | None = None

    def read(self, offset: int, count: int) -> Array:
        """Return the ``count`` numbers that the record at ``offset`` describes, as a flat array.

        Raises:
            CheckpointError: if there is no such record, or it does not have that many.
        """
        data = self._mapped()
        if not 0 <= offset <= len(data) - _RECORD.size:
            raise CheckpointError(f"{self._path} ends before the record at byte {offset}; it is incomplete.")
        sentinel, kind, size, start = _RECORD.unpack(data[offset : offset + _RECORD.size].tobytes())
        if sentinel != _SENTINEL or kind not in _STORED:
            raise CheckpointError(f"{self._path} has no record at byte {offset}; it is damaged.")
        dtype, bits = _STORED[kind]
        if start + size > len(data) or 8 * size < count * bits:
            raise CheckpointError(
                f"{self._path}: the record at byte {offset} has too few bytes; it is incomplete."
            )
        raw = data[start : start + size]
        if bits >= 8:
            made: Array = raw.view(dtype)[:count]
            return made
        return _unpack(raw, bits, count, signed=dtype is np.int8)

    def _mapped(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            try:
                self._bytes = np.memmap(self._path, np.uint8, mode="r")
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{self._path} can't be read; the package is incomplete.") from error
        return self._bytes


def _unpack(raw: NDArray[np.uint8], bits: int, count: int, *, signed: bool) -> Array:
    flags = np.unpackbits(raw, bitorder="little")[: count * bits].reshape(count, bits)
    numbers = flags @ (1 << np.arange(bits)).astype(np.int16)
    if signed:
        numbers = np.where(numbers >= 1 << (bits - 1), numbers - (1 << bits), numbers)
    return numbers.astype(np.int8 if signed else np.uint8)


def shape_of(tensor_type: Any) -> tuple[int, ...]:
    """Shape of a ``TensorType`` message; -1 stands for a dimension that is not fixed."""
    return tuple(
        int(dimension.constant.size) if dimension.WhichOneof("dimension") == "constant" else -1
        for dimension in tensor_type.dimensions
    )


def constant(value: Any, weights: WeightFile) -> Array:
    """The array, or 0-d array, of a ``Value`` message.

    Raises:
        CheckpointError: if it is of a type that programs of this kind do not have.
    """
    tensor_type = value.type.tensorType
    dtype, shape = DTYPES.get(tensor_type.dataType), shape_of(tensor_type)
    if value.type.WhichOneof("type") != "tensorType" or dtype is None or -1 in shape:
        raise CheckpointError("The program has a constant of a type that the MIL runner does not know.")
    count = int(np.prod(shape, dtype=np.int64))
    if value.WhichOneof("value") == "blobFileValue":
        return weights.read(value.blobFileValue.offset, count).reshape(shape)
    tensor = value.immediateValue.tensor
    field = tensor.WhichOneof("value")
    if field == "bytes":
        raw = np.frombuffer(tensor.bytes.values, np.uint8)
        made: Array = raw.view(dtype)[:count].reshape(shape)
        return made
    numbers = list(getattr(tensor, field).values) if field else []
    if len(numbers) != count:
        raise CheckpointError(f"A constant of the program has {len(numbers)} numbers instead of {count}.")
    return np.array(numbers, dtype if field != "strings" else np.str_).reshape(shape)
