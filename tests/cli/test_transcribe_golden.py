"""``nemostream transcribe`` gives exactly the tokens that NeMo computed, whatever the form of the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from tests.conftest import REPOSITORY

from .conftest import Run

LATENCY = {0: "80", 1: "160", 3: "320", 6: "560", 13: "1120"}
CASES = [("multi", right) for right in (0, 3, 6, 13)] + [("en", right) for right in (0, 1, 6, 13)]


def _golden(folder: Path, model: str, right: int, clip: str) -> list[tuple[int, int]]:
    """(token, frame) that NeMo emitted offline."""
    numpy = pytest.importorskip("safetensors.numpy")
    tensors = numpy.load_file(folder / f"{model}.safetensors")
    pairs = zip(tensors[f"{clip}.R{right}.tokens"], tensors[f"{clip}.R{right}.token_frames"], strict=True)
    return [(int(token), int(frame)) for token, frame in pairs]


def _heard(line: str) -> list[tuple[int, int]]:
    return [(token["id"], token["frame"]) for token in json.loads(line)["tokens"]]


def _arguments(model: Path, right: int) -> list[str]:
    language = [] if model.name.startswith("en") else ["--language", "de-DE"]
    return ["transcribe", "--model", str(model), "--latency", LATENCY[right], "-f", "json", *language]


@pytest.mark.parametrize(("model", "right"), CASES)
def test_every_latency(run: Run, golden: Path, model: str, right: int) -> None:
    clips = [golden / "a0.wav", golden / "a1.wav"]
    result = run(*_arguments(golden / f"{model}.nemo", right), "--backend", "torch", *clips)
    assert (result.code, result.err) == (0, "")
    for line, clip in zip(result.out.splitlines(), ("a0", "a1"), strict=True):
        assert _heard(line) == _golden(golden, model, right, clip)


@pytest.mark.parametrize("model", ["multi", "en"])
def test_a_hugging_face_folder(run: Run, golden: Path, model: str) -> None:
    result = run(*_arguments(golden / f"{model}_hf", 6), golden / "a1.wav")
    assert _heard(result.out) == _golden(golden, model, 6, "a1")


def test_chunk_by_chunk(run: Run, golden: Path) -> None:
    result = run(*_arguments(golden / "multi.nemo", 3), "--chunks-per-call", "1", golden / "a0.wav")
    assert _heard(result.out) == _golden(golden, "multi", 3, "a0")


def test_standard_input_in_packets(run: Run, golden: Path, stdin: Callable[[bytes], None]) -> None:
    pcm, rate = soundfile.read(golden / "a0.wav", dtype="int16")
    stdin(pcm.astype("<i2").tobytes())
    result = run(*_arguments(golden / "multi.nemo", 3), "-", "--rate", rate)
    assert _heard(result.out) == _golden(golden, "multi", 3, "a0")


@pytest.mark.parametrize("model", ["multi", "en"])
def test_an_onnx_bundle(run: Run, golden: Path, tmp_path: Path, model: str) -> None:
    pytest.importorskip("onnx")
    bundle = tmp_path / f"{model}-onnx"
    assert run("convert", golden / f"{model}.nemo", "--to", "onnx", "-o", bundle).code == 0
    for right in (0, 6, 13):
        result = run(*_arguments(bundle, right), golden / "a0.wav")
        assert json.loads(result.out)["backend"] == "onnx"
        assert _heard(result.out) == _golden(golden, model, right, "a0")


@pytest.mark.parametrize("right", [0, 3, 6, 13])
def test_what_a_clone_can_check(run: Run, right: int) -> None:
    """The same promise on the copy that is in the repository."""
    folder = REPOSITORY / "tests" / "data" / "golden"
    expected = json.loads((folder / "a0.json").read_text())[f"R{right}"]
    result = run(*_arguments(folder / "multi.nemo", right), "--backend", "torch", folder / "a0.wav")
    assert _heard(result.out) == list(zip(expected["tokens"], expected["frames"], strict=True))
