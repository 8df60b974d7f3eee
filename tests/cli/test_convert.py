"""``nemostream convert`` to every layout, from the small checkpoint that a clone has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

from .conftest import Run

GOLDEN = REPOSITORY / "tests" / "data" / "golden"
CHECKPOINT, CLIP = GOLDEN / "multi.nemo", GOLDEN / "a0.wav"


def tokens(run: Run, *model: object) -> list[int]:
    result = run("transcribe", "-f", "json", "-l", "de-DE", "--latency", "320", *model, CLIP)
    assert result.code == 0, result.err
    return [token["id"] for token in json.loads(result.out)["tokens"]]


def test_onnx_and_mlx_give_the_tokens_of_nemo(run: Run, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / "a0.json").read_text())["R3"]["tokens"]
    assert run("convert", CHECKPOINT, "--to", "onnx", "-o", tmp_path / "onnx").code == 0
    assert tokens(run, "-m", tmp_path / "onnx") == expected
    assert run("convert", CHECKPOINT, "--to", "mlx", "-o", tmp_path / "mlx").code == 0
    assert tokens(run, "-m", tmp_path / "mlx", "--backend", "torch") == expected
    pytest.importorskip("mlx.core", exc_type=ImportError, reason="the extra mlx is not installed")
    assert tokens(run, "-m", tmp_path / "mlx") == expected
    for decoder in ("mlx", "onnx"):
        assert tokens(run, "-m", tmp_path / "mlx", "--backend", "mlx", "--decoder", decoder) == expected
    refused = run("transcribe", CLIP, "-m", tmp_path / "onnx", "--decoder", "onnx")
    assert refused.code != 0
    assert "decoder is a setting of the backend mlx" in refused.err


def test_mlx_folder_is_inspected(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mlx"
    assert run("convert", CHECKPOINT, "--to", "mlx", "--weights", "bf16", "-o", folder).code == 0
    shown = run("inspect", folder)
    assert shown.code == 0
    assert "mlx bundle" in shown.out
    assert "bf16" in shown.out
    assert shown.out.count("as in the manifest") == 7
    assert "graph decoder.onnx" in shown.out
    with (folder / "melfilters.f32").open("ab") as file:
        file.write(b"\0")
    altered = run("inspect", folder)
    assert altered.code != 0
    assert "melfilters.f32" in altered.err


def test_sherpa_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "sherpa"
    assert run("convert", CHECKPOINT, "--to", "sherpa", "--latency", "560", "-o", folder).code == 0
    assert {"encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"} <= {f.name for f in folder.iterdir()}


def test_int8_says_what_it_costs(run: Run, tmp_path: Path) -> None:
    arguments = ("--to", "onnx", "--weights", "int8", "--measure-on", CLIP, "-o", tmp_path / "int8")
    result = run("convert", CHECKPOINT, *arguments)
    assert result.code == 0
    assert "Against fp32" in result.err
    assert "int8" in (tmp_path / "int8" / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--to", "mlx", "--weights", "int4"), "--to mlx stores weights as fp32 or fp16 or bf16 only"),
        (("--to", "onnx", "--latency", "320"), "--latency is for --to sherpa"),
        (("--to", "tflite"), "invalid choice"),
    ],
)
def test_usage_errors(run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = run("convert", CHECKPOINT, *arguments, "-o", tmp_path / "out")
    assert result.code == 2
    assert sentence in result.err
    assert not (tmp_path / "out").exists()
