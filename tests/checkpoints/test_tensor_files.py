"""Our safetensors files against the safetensors package, and what a damaged one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nemostream.checkpoints import files
from nemostream.errors import BackendError, CheckpointError

ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.float32([[1.5], [-2]]),
    "none": np.zeros((0, 4)),
}


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_safetensors_package_reads_what_we_write(dtype: files.StoredDtype, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.safetensors"
    files.write_safetensors(path, ARRAYS, dtype)
    theirs = pytest.importorskip("safetensors.torch").load_file(path)
    ours = files.read_safetensors(path)
    assert set(theirs) == set(ours) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert theirs[name].dtype == getattr(torch, dtype)
        np.testing.assert_array_equal(theirs[name].float().numpy(), array)
        np.testing.assert_array_equal(ours[name], array)
        assert ours[name].dtype == (np.float16 if dtype == "float16" else np.float32)


def test_we_read_what_the_safetensors_package_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(3, 5, generator=generator).to(getattr(torch, name))
        for name in ("bfloat16", "float32", "float16")
    }
    pytest.importorskip("safetensors.torch").save_file(tensors, tmp_path / "x.safetensors")
    ours = files.read_safetensors(tmp_path / "x.safetensors")
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(ours[name], tensor.float().numpy())


@settings(deadline=None)
@given(hnp.arrays(np.float32, 20, elements=st.floats(width=32, allow_subnormal=True)))
def test_bfloat16_rounds_as_torch_does(values: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    ours = files.widen_bfloat16(files.round_to_bfloat16(values))
    np.testing.assert_array_equal(ours, torch.from_numpy(values).to(torch.bfloat16).float().numpy())


def test_values_too_large_for_float16_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="big has a value of 70000, too large for float16; use bfloat16"
    ):
        files.write_safetensors(tmp_path / "x", {"big": np.float32([1, 7e4])}, "float16")


def test_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'int8'; use one of float32, float16, bfloat16"):
        files.write_safetensors(tmp_path / "x", ARRAYS, "int8")  # type: ignore[arg-type]


@settings(deadline=None)
@given(cut=st.integers(min_value=0))
def test_every_truncation_is_noticed(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.safetensors"
    files.write_safetensors(path, ARRAYS, "float32")
    content = path.read_bytes()
    path.write_bytes(content[: cut % len(content)])
    with pytest.raises(CheckpointError, match=r"x\.safetensors .*fetch the checkpoint again"):
        files.read_safetensors(path)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"w": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}, 2, "has w as I8; F32, F16 or BF16"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4, "offsets and shape of w disagree"),
        ({"w": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, 4, "shape of w disagree"),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, 8, "shape of w disagree"),
        (
            {"w": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}},
            4,
            "shape of w disagree",
        ),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 5, "its header promises"),
        ({"w": {"dtype": "F32"}}, 0, "damaged safetensors header"),
        ({"w": 3}, 0, "damaged safetensors header"),
        ([1], 0, "damaged safetensors header"),
    ],
)
def test_damaged_headers_are_refused(header: Any, data: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        files.read_safetensors(raw_file(tmp_path / "x.safetensors", header, bytes(data)))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"x\.safetensors cannot be read \(No such file"):
        files.read_safetensors(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read .*fetch"):
        files.read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[1]", "holds a JSON list"), ("[" * 100_000, "is not JSON")]
)
def test_json_that_is_no_object_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=rf"config\.json {message}"):
        files.read_json(path)


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(BackendError, match=r"Doing it needs the nosuchpackage package.*nemostream\[hub\]"):
        files.optional_module("nosuchpackage.part", "hub", "Doing it")
