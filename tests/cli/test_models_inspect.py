"""``nemostream models``, ``inspect`` and ``convert``."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nemostream.checkpoints.hub import PINNED
from nemostream.cli.models import PUBLISHED, cached_revisions, describe_contexts

from .conftest import Run


def test_models_lists_every_known_name(run: Run) -> None:
    result = run("models")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("tiny\n")
    assert {model.name for model in PUBLISHED} == set(PINNED)
    for model in PUBLISHED:
        assert f"{model.name}\n" in result.out
        assert model.licence in result.out
        assert describe_contexts(model.att_contexts) in result.out


def test_models_shows_what_is_in_the_cache(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert run("models").out.count("not downloaded") == 2
    name = PUBLISHED[0].name
    (tmp_path / "models--nvidia--nemotron-3.5-asr-streaming-0.6b" / "snapshots" / ("ab" * 20)).mkdir(
        parents=True
    )
    assert cached_revisions(name) == ["ab" * 20]
    assert "ab" * 20 in run("models").out


def test_describe_contexts() -> None:
    assert describe_contexts([(56, 3), (56, 0)]) == "320 ms [56, 3] (default), 80 ms [56, 0]"


def test_inspect_a_checkpoint(run: Run, model_folder: Path) -> None:
    result = run("inspect", model_folder)
    assert (result.code, result.err) == (0, "")
    for fact in (
        "huggingface checkpoint",
        "hidden_size                  48",
        "320 ms [56, 3] (default)",
        "auto, de-DE, en-US",
        "language tags                en-US, de-DE",
        "parameters",
    ):
        assert fact in result.out
    for path in model_folder.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() in result.out


def test_convert_then_inspect_and_transcribe(
    run: Run, model_folder: Path, audio: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    bundle = tmp_path / "bundle"
    result = run("convert", model_folder, "--to", "onnx", "-o", bundle)
    assert (result.code, result.out) == (0, "")
    assert str(bundle) in result.err
    inspected = run("inspect", bundle)
    assert inspected.code == 0
    for fact in ("onnx bundle", "weights                      fp32", "graph encoder.onnx", "input   mel  ["):
        assert fact in inspected.out
    assert inspected.out.count("as in the manifest") >= 3
    texts = {
        run("transcribe", "--model", model, audio, "-l", "de-DE").out.strip()
        for model in (bundle, model_folder)
    }
    assert len(texts) == 1
    refused = run("convert", model_folder, "--to", "onnx", "-o", bundle)
    assert refused.code == 2
    assert "not an empty folder" in refused.err
    with (bundle / "tokens.txt").open("ab") as file:
        file.write(b"x 99\n")
    altered = run("inspect", bundle)
    assert altered.code == 4
    assert "NOT AS IN THE MANIFEST" in altered.out
    assert "tokens.txt" in altered.errors[0]
