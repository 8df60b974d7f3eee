"""The two kinds of file that checkpoint folders are made of: JSON objects and safetensors.

safetensors is read and written here with numpy alone (eight bytes of header length, a JSON header, then the
tensors; https://github.com/huggingface/safetensors), because numpy has no bfloat16 and loading a checkpoint
should need no optional package.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from nemostream.errors import BackendError, CheckpointError

StoredDtype = Literal["float32", "float16", "bfloat16"]

_CODES: dict[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_NUMPY: dict[str, str] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # bfloat16 as its bits
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_AGAIN = "fetch the checkpoint again"


def optional_module(name: str, extra: str, purpose: str) -> Any:
    """Import a package that only an extra installs.

    Raises:
        BackendError: if it is not installed; the message says which extra brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendError(
            f"{purpose} needs the {name.partition('.')[0]} package; run: pip install 'nemostream[{extra}]'."
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        CheckpointError: if it is missing, not JSON, or not an object.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); {_AGAIN}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}); {_AGAIN}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}, not an object; {_AGAIN}.")
    return content


@contextlib.contextmanager
def reading_config(path: Path) -> Iterator[None]:
    """Turn what a malformed configuration raises while it is read into an error that names the file.

    Raises:
        CheckpointError: for a key that is missing or a value of a wrong type.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{path} has a configuration that cannot be read ({error!r}): "
            f"a key is missing or has a value of the wrong type; {_AGAIN}."
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as readable JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read all tensors of a file: float32 and float16 as they are, bfloat16 widened to float32.

    Raises:
        CheckpointError: if the file is missing, truncated or malformed, or a tensor has another dtype.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            entries, start = _read_header(file, size, path)
            tensors = {}
            for name, (code, shape, begin) in entries.items():
                file.seek(start + begin)
                raw = np.fromfile(file, dtype=_NUMPY[code], count=math.prod(shape))
                tensors[name] = (widen_bfloat16(raw) if code == "BF16" else raw).reshape(shape)
            return tensors
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); {_AGAIN}.") from error


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]], dtype: StoredDtype) -> None:
    """Write float arrays to a safetensors file in one dtype, rounding to nearest even.

    Raises:
        CheckpointError: if ``dtype`` is unknown, or a value is too large for it.
    """
    if dtype not in _CODES:
        raise CheckpointError(f"Weights cannot be stored as {dtype!r}; use one of {', '.join(_CODES)}.")
    itemsize = np.dtype(_NUMPY[_CODES[dtype]]).itemsize
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers insists on this entry
    offset = 0
    for name, array in tensors.items():
        end = offset + array.size * itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, array in tensors.items():
            file.write(_encode(name, array, dtype).tobytes())


def widen_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the float32 values of bfloat16 bits (exact: they are the upper half of a float32)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_to_bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Return the bfloat16 bits nearest to ``values``, ties to even, NaN kept."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40  # adding could carry a NaN over into infinity or zero
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def _encode(name: str, array: npt.NDArray[Any], dtype: StoredDtype) -> npt.NDArray[Any]:
    if dtype == "bfloat16":
        return round_to_bfloat16(array)
    with np.errstate(over="ignore"):
        encoded = array.astype(_NUMPY[_CODES[dtype]])
    if dtype == "float16" and np.any(np.isinf(encoded) & np.isfinite(array)):
        peak = float(np.abs(array[np.isfinite(array)]).max())
        raise CheckpointError(
            f"{name} has a value of {peak:g}, too large for float16; use bfloat16 or float32."
        )
    return encoded


def _read_header(
    file: BinaryIO, size: int, path: Path
) -> tuple[dict[str, tuple[str, tuple[int, ...], int]], int]:
    """Return name -> (dtype code, shape, offset from the data's start), and where the data starts."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(_MAX_HEADER, size - 8):
        raise CheckpointError(f"{path} is not a safetensors file, or is cut short ({size} bytes); {_AGAIN}.")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        entries = sorted(_parse_entry(str(name), entry) for name, entry in header.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged safetensors header ({error!r}); {_AGAIN}.") from error
    result: dict[str, tuple[str, tuple[int, ...], int]] = {}
    expected = 0
    for begin, end, name, code, shape in entries:
        if code not in _NUMPY:
            raise CheckpointError(
                f"{path} has {name} as {code}; F32, F16 or BF16 was expected: use an unquantised checkpoint."
            )
        wanted = math.prod(shape) * np.dtype(_NUMPY[code]).itemsize
        if begin != expected or end - begin != wanted or min(shape, default=0) < 0:
            raise CheckpointError(f"{path} is damaged: the offsets and shape of {name} disagree; {_AGAIN}.")
        result[name], expected = (code, shape, begin), end
    if 8 + length + expected != size:
        raise CheckpointError(
            f"{path} has {size} bytes where its header promises {8 + length + expected}; "
            f"it was cut short or altered, so {_AGAIN}."
        )
    return result, 8 + length


def _parse_entry(name: str, entry: Mapping[str, Any]) -> tuple[int, int, str, str, tuple[int, ...]]:
    """Return (begin, end, name, dtype code, shape), which sorts by place in the file."""
    begin, end = (int(offset) for offset in entry["data_offsets"])
    return begin, end, name, str(entry["dtype"]), tuple(int(side) for side in entry["shape"])
