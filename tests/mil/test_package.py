"""Packages: what the runner reads from them, how it rounds, and what it says about damaged ones."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="the extra coreml is not installed")

from nemostream.errors import BackendError, CheckpointError
from nemostream.mil import read_program
from tests.mil.programs import save_program

WEIGHT = np.random.default_rng(0).normal(size=(24, 16)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(2, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``y = silu(x @ W.T)``, with W in the weight file."""
    return save_program(
        tmp_path_factory.mktemp("saved"),
        lambda mb, x: mb.silu(x=mb.linear(x=x, weight=WEIGHT), name="y"),
        {"x": ((2, 16), "fp32")},
    )


@pytest.fixture
def package(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "copy.mlpackage"))


def model_file(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "model.mlmodel"


def weight_file(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"


def test_what_a_program_says_of_itself(saved: Path) -> None:
    program = read_program(saved)
    assert program.inputs == {"x": ((2, 16), "float32")}
    assert program.outputs == {"y": ((2, 24), "float32")}
    assert program.operations == ["linear", "silu"]
    assert program.compressed == {}
    product = X @ WEIGHT.T
    found = program({"x": X})["y"]
    assert found.dtype == np.float32
    assert np.allclose(found, product / (1 + np.exp(-product)), atol=1e-6)


def test_inner_values_can_be_kept(saved: Path) -> None:
    program = read_program(saved)
    (inner,) = set(program({"x": X}, keep=["linear_0"])) - {"y"}
    assert np.allclose(program({"x": X}, keep=[inner])[inner], X @ WEIGHT.T, atol=1e-5)


def test_every_result_is_rounded_as_its_type_says(tmp_path: Path) -> None:
    """Against the same three steps in numpy, bit for bit; without rounding, against fp32."""
    path = save_program(
        tmp_path,
        lambda mb, x: mb.cast(
            x=mb.exp(x=mb.mul(x=mb.cast(x=x, dtype="fp16"), y=np.float16(1.1))), dtype="fp32"
        ),
        {"x": ((2, 16), "fp32")},
    )

    def half(values: Any) -> Any:
        return values.astype(np.float16).astype(np.float32)

    factor = np.float32(np.float16(1.1))
    (rounded,) = read_program(path)({"x": X}).values()
    assert np.array_equal(rounded, half(np.exp(half(half(X) * factor))))
    (exact,) = read_program(path, fp16=False)({"x": X}).values()
    assert np.array_equal(exact, np.exp(X * factor))
    assert not np.array_equal(rounded, exact)


def test_numbers_beyond_fp16_become_infinite(tmp_path: Path) -> None:
    path = save_program(
        tmp_path, lambda mb, x: mb.cast(x=mb.cast(x=x, dtype="fp16"), dtype="fp32"), {"x": ((3,), "fp32")}
    )
    (found,) = read_program(path)({"x": np.array([65504.0, 7e4, -7e4], np.float32)}).values()
    assert found.tolist() == [65504.0, np.inf, -np.inf]


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({}, "the input 'x' is missing"),
        ({"x": X[:1]}, r"x has shape \[1, 16\], not \[2, 16\]"),
        ({"x": X.T}, r"x has shape \[16, 2\], not \[2, 16\]"),
    ],
)
def test_inputs_that_do_not_fit(saved: Path, inputs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        read_program(saved)(inputs)


def test_an_unknown_operation_is_named(tmp_path: Path) -> None:
    path = save_program(tmp_path, lambda mb, x: mb.cumsum(x=x, axis=0), {"x": ((2, 3), "fp32")})
    with pytest.raises(BackendError, match="has the operation 'cumsum', which the MIL runner does not know"):
        read_program(path)({"x": np.zeros((2, 3), np.float32)})


def test_an_operation_that_fails_is_named(tmp_path: Path) -> None:
    """With an index beyond the end, which only the inputs decide."""
    path = save_program(
        tmp_path,
        lambda mb, x, i: mb.gather(x=x, indices=i, axis=0, name="row"),
        {"x": ((2, 3), "fp32"), "i": ((1,), "int32")},
    )
    with pytest.raises(BackendError, match=r"row.* = gather failed: index 7 is out of bounds"):
        read_program(path)({"x": np.zeros((2, 3), np.float32), "i": np.array([7], np.int32)})


def test_a_missing_manifest(package: Path) -> None:
    (package / "Manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"Manifest\.json is missing or damaged"):
        read_program(package)


def test_a_manifest_that_points_outside(package: Path) -> None:
    manifest = json.loads((package / "Manifest.json").read_text())
    manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = "../../elsewhere"
    (package / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="points outside of the package"):
        read_program(package)


def test_a_missing_model(package: Path) -> None:
    model_file(package).unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.mlmodel; it is incomplete"):
        read_program(package)


@pytest.mark.parametrize("content", [b"\xff" * 40, b""])
def test_a_damaged_model(package: Path, content: bytes) -> None:
    model_file(package).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is damaged|is not an ML program"):
        read_program(package)


def test_another_function(saved: Path) -> None:
    with pytest.raises(CheckpointError, match="not an ML program with a function 'other'"):
        read_program(saved, function="other")


def test_a_missing_weight_file(package: Path) -> None:
    weight_file(package).unlink()
    with pytest.raises(CheckpointError, match=r"weight\.bin can't be read; the package is incomplete"):
        read_program(package)({"x": X})


@pytest.mark.parametrize(
    ("lost", "sentence"), [(1500, "ends before the record|has too few bytes"), (80, "has too few bytes")]
)
def test_a_weight_file_that_was_cut_short(package: Path, lost: int, sentence: str) -> None:
    """Its last record is the bias of 96 bytes; whether that or the matrix is read first is left open."""
    weight_file(package).write_bytes(weight_file(package).read_bytes()[:-lost])
    with pytest.raises(CheckpointError, match=sentence):
        read_program(package)({"x": X})


@pytest.mark.parametrize(("place", "value"), [(0, 0xDEADBEEE), (4, 77)])
def test_a_record_of_weights_that_is_none(package: Path, place: int, value: int) -> None:
    """Another marker, or a type of numbers that does not exist, in the first record (after the header)."""
    content = bytearray(weight_file(package).read_bytes())
    assert struct.unpack_from("<I", content, 64) == (0xDEADBEEF,)
    struct.pack_into("<I", content, 64 + place, value)
    weight_file(package).write_bytes(content)
    with pytest.raises(CheckpointError, match="has no record at byte 64; it is damaged"):
        read_program(package)({"x": X})
