"""What is written into a manifest about the cost of small weights."""

from __future__ import annotations

import json
import shutil
import wave
from pathlib import Path

import numpy as np
import pytest

from nemostream.checkpoints.bundle import read_manifest
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.errors import LanguageError
from nemostream.evaluate.manifest import ManifestError
from nemostream.export import measure
from nemostream.export.linear import Weights
from nemostream.export.measure import Comparison, measure_errors, record_error
from nemostream.runtimes.onnx import OnnxRuntime
from tests.bundles import random_bundle
from tests.models import small_checkpoint, small_config

SECONDS, ROW_SECONDS = 2.0, 6.0


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return small_checkpoint(small_config())


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Five recordings of noise, of which a long recording takes three."""
    lines = []
    for number in range(5):
        noise = np.random.default_rng(number).standard_normal(round(SECONDS * 16_000)) * 3000
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(noise.astype("<i2").tobytes())
        lines.append(json.dumps({"audio_filepath": f"{number}.wav", "text": "w1 w2", "lang": "de"}))
    path = tmp_path / "manifest.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def copy_of(weights: Weights, folder: Path) -> Path:
    return Path(shutil.copytree(random_bundle(True, weights), folder))


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_a_manifest_gives_utterances_and_a_long_recording(
    weights: Weights,
    checkpoint: Checkpoint,
    manifest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("jiwer")
    monkeypatch.setattr(measure, "LONG_SECONDS", ROW_SECONDS)
    folder = copy_of(weights, tmp_path / "bundle")
    record_error(folder, checkpoint, [manifest, manifest.parent / "0.wav"])
    each, row, one = read_manifest(folder).measured["parts"]  # type: ignore[index]
    name = f"{tmp_path.name}/manifest.jsonl"
    assert [part["on"] for part in (each, row, one)] == [name, f"{name} in a row", "0.wav"]
    assert (each["recordings"], row["recordings"], one["recordings"]) == (5, 1, 1)
    assert each["seconds"] == 5 * SECONDS
    assert ROW_SECONDS < row["seconds"] < ROW_SECONDS + SECONDS
    assert "wer" not in one
    assert each["tokens"] > 10
    for part in (each, row, one):
        if weights == "fp32":
            assert part["max_abs"] < 1e-3
            assert part["token_agreement"] == 1.0
            assert part.get("wer") == part.get("wer_fp32")
        else:
            assert 1e-3 < part["max_abs"] < 1.0
            assert 0.9 < part["cosine"] < 1.0
    assert each["wer_fp32"] > 0.5


def test_many_recordings_take_one_slot(
    checkpoint: Checkpoint, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jiwer")
    monkeypatch.setattr(measure, "MOST_SECONDS", 1.0)
    port = OnnxRuntime(random_bundle(True, "fp32"), threads=1)
    (each,), (row,) = measure_errors(checkpoint, [port], [manifest])
    assert port.slots == 1
    assert each["seconds"] == 5 * 1.0
    assert row["seconds"] == 5 * 1.0 + 4 * measure.PAUSE_SECONDS


def test_comparison_of_what_is_known() -> None:
    comparison = Comparison()
    comparison.add_frames(np.array([[3.0, 4.0]], np.float32), np.array([[3.0, 4.0]], np.float32))
    comparison.add_frames(np.array([[1.0, 0.0]], np.float32), np.array([[0.0, 2.0]], np.float32))
    comparison.add_tokens([1, 2], [1])
    comparison.add_tokens([3, 4], [3, 4])
    assert comparison.result() == {"max_abs": 2.0, "cosine": 0.5, "token_agreement": 0.75}


def test_what_cannot_be_measured_on(checkpoint: Checkpoint, manifest: Path, tmp_path: Path) -> None:
    folder = copy_of("fp32", tmp_path / "bundle")
    with pytest.raises(ManifestError, match="cannot be read"):
        record_error(folder, checkpoint, [tmp_path / "none.jsonl"])
    manifest.write_text(manifest.read_text().replace('"de"', '"tlh"'))
    with pytest.raises(LanguageError, match="tlh"):
        record_error(folder, checkpoint, [manifest])
    assert read_manifest(folder).measured is None
