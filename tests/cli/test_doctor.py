"""``nemostream doctor``."""

from __future__ import annotations

from importlib.util import find_spec as real_find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemostream.cli.doctor import words_in_common
from nemostream.errors import BackendError

from .conftest import Run

SPOKEN = "The quick brown fox."


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose bundled clip says `SPOKEN`."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "clip.txt").write_text(SPOKEN)
    monkeypatch.setattr("nemostream.cli.doctor.files", lambda _: tmp_path)


def hear(monkeypatch: pytest.MonkeyPatch, **texts: str | Exception) -> None:
    """Let every backend recognise this text, or raise this."""

    def load(_: object, backend: str) -> Any:
        text = texts.get(backend, SPOKEN)
        if isinstance(text, Exception):
            raise text
        return SimpleNamespace(transcribe=lambda _: SimpleNamespace(text=text, duration=1.0))

    monkeypatch.setattr("nemostream.loading.load", load)


@pytest.mark.usefixtures("clip")
def test_all_is_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, onnx="the quick BROWN fox", torch=SPOKEN)
    result = run("doctor")
    assert (result.code, result.err) == (0, "")
    assert "run onnx   works: " in result.out
    assert "100% of the words as expected" in result.out
    assert "run torch  works: " in result.out
    for word in ("python ", "processor ", "threads ", "numpy ", "onnxruntime ", "coremltools "):
        assert word in result.out


@pytest.mark.usefixtures("clip")
@pytest.mark.parametrize("fault", ["", "something else entirely", OSError("no libonnx"), BackendError("no")])
def test_an_installed_runtime_that_fails_is_code_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: str | Exception
) -> None:
    hear(monkeypatch, onnx=fault, torch=SPOKEN)
    result = run("doctor")
    assert result.code == 1
    assert "run torch  works" in result.out
    assert "run onnx   FAILS" in result.out


@pytest.mark.usefixtures("clip")
def test_a_runtime_that_is_not_installed_is_no_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, onnx=SPOKEN)
    monkeypatch.setattr(
        "nemostream.cli.doctor.find_spec", lambda name: None if name == "torch" else real_find_spec(name)
    )
    result = run("doctor")
    assert result.code == 0
    assert "run torch  not installed" in result.out


@pytest.mark.parametrize(
    ("recognized", "least", "most"),
    [
        (SPOKEN.upper(), 1.0, 1.0),
        ("the quick fox", 0.8, 0.9),
        ("and now for something else", 0.0, 0.3),
        ("", 0.0, 0.0),
    ],
)
def test_words_in_common(recognized: str, least: float, most: float) -> None:
    assert least <= words_in_common(SPOKEN, recognized) <= most
