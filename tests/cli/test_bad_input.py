"""Whatever is wrong is one sentence and an exit code, and the other files are still done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from .conftest import RATE, Run, noise


def _missing(path: Path) -> None:
    pass


def _text(path: Path) -> None:
    path.write_text("This is not audio.\n" * 100)


def _empty(path: Path) -> None:
    path.touch()


def _truncated(path: Path) -> None:
    soundfile.write(path, noise(2.0), RATE, format="WAV")
    path.write_bytes(path.read_bytes()[:-20_000])


def _not_finite(path: Path) -> None:
    samples = noise(1.0)
    samples[RATE // 2] = np.nan
    soundfile.write(path, samples, RATE, format="WAV", subtype="FLOAT")


def _no_samples(path: Path) -> None:
    soundfile.write(path, noise(1.0)[:0], RATE, format="WAV")


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("spoil", [_missing, _text, _empty, _truncated, _not_finite, _no_samples, _folder])
@pytest.mark.parametrize("channels", ["mix", "split"])
def test_a_bad_file_is_one_sentence_and_the_others_are_done(
    transcribe: Run, audio: Path, tmp_path: Path, spoil: Callable[[Path], None], channels: str
) -> None:
    bad = tmp_path / "bad.wav"
    spoil(bad)
    result = transcribe(bad, audio, bad, "-o", tmp_path / "out", "--channels", channels)
    assert result.code == 3
    assert len(result.errors) == 2
    assert len(result.err.splitlines()) == 2 + 1  # the note that the second bad.wav has another name
    assert result.errors[0].startswith(f"nemostream: error: {bad}: ")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sound.txt"]


def test_an_unknown_language_is_said_once_and_lists_the_valid_ones(transcribe: Run, audio: Path) -> None:
    result = transcribe(audio, audio, "--language", "xx-XX")
    assert (result.code, result.out) == (6, "")
    assert result.errors == [
        "nemostream: error: Unknown language 'xx-XX'; the valid ones are: auto, de-DE, en-US."
    ]


def test_a_context_that_cannot_stream(transcribe: Run, audio: Path) -> None:
    result = transcribe(audio, "--att-context", "55", "3")
    assert result.code == 5
    assert "use left 52" in result.errors[0]


@pytest.mark.parametrize("name", ["nowhere.nemo", "sound.flac", "."])
def test_a_wrong_model(run: Run, audio: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(audio.parent)
    for command in (
        ["transcribe", audio, "--model", name],
        ["inspect", name],
        ["convert", name, "--to", "onnx", "-o", "x"],
    ):
        result = run(*command)
        assert (result.code, result.out) == (4, "")
        assert len(result.err.splitlines()) == 1


def test_a_backend_that_cannot_run_the_model(transcribe: Run, audio: Path) -> None:
    result = transcribe(audio, "--backend", "onnx")
    assert result.code == 7
    assert "nemostream convert" in result.errors[0]


@pytest.mark.parametrize(
    ("data", "arguments", "sentence"),
    [
        (b"", [], "ended after 0 bytes"),
        (b"\0", [], "ended after 1 bytes"),
        (b"RIFF\0\0\0\0WAVE", [], "begins with the header of a WAV file"),
        (b"\0" * 100, ["--encoding", "mp3"], "Unknown PCM encoding 'mp3'"),
        (np.full(1000, np.nan, "<f4").tobytes(), ["--encoding", "f32le"], "NaN at sample 0"),
        (b"\0" * 100, ["--channels", "1"], "Channel 1 was asked for"),
        (b"\0" * 100, ["--rate", "100"], "from 4000 to 384000 Hz"),
    ],
)
def test_bad_standard_input(
    transcribe: Run, stdin: Callable[[bytes], None], data: bytes, arguments: list[str], sentence: str
) -> None:
    stdin(data)
    result = transcribe("-", "--rate", RATE, *arguments)
    assert result.code == 3
    assert result.out == ""
    assert sentence in result.errors[0]


def test_an_unexpected_fault_with_one_file_names_it(
    transcribe: Run, audio: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("nemostream.engine.model.Model.transcribe", broken)
    result = transcribe(audio, audio)
    assert result.code == 1
    assert result.errors[0].startswith(f"nemostream: error: {audio}: unexpected ZeroDivisionError")
    assert len(result.errors) == 2


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--beam", "100000"], "at most 64"),
        (["--boost", "a", "--boost-score", "0"], "above 0"),
        (["--boost", "a", "--boost-score", "11"], "at most 10"),
        (["--boost", " "], "empty phrase"),
        (["--itn", "nonsense"], "MODULE:FUNCTION"),
        (["-o", ""], "empty"),
    ],
)
def test_options_out_of_range_are_wrong_usage(
    transcribe: Run, audio: Path, options: list[str], part: str
) -> None:
    result = transcribe(audio, *options)
    assert result.code == 2
    assert len(result.errors) == len(result.err.splitlines()) == 1
    assert part in result.err


@pytest.mark.parametrize("options", [["--calls", "0"], ["--seconds", "0"], ["--seconds", "nan"]])
def test_load_tests_of_nothing_are_wrong_usage(run: Run, options: list[str]) -> None:
    result = run("bench", "calls", *options)
    assert result.code == 2
    assert "above 0" in result.err


@pytest.mark.parametrize("affinity", ["zzz", "9999", "0", "1;1", ""])
def test_affinities_are_checked_here(run: Run, audio: Path, affinity: str) -> None:
    result = run("transcribe", audio, "--threads", "2", "--affinity", affinity)
    assert result.code == 7
    assert len(result.errors) == len(result.err.splitlines()) == 1
    assert "processors from 1 to" in result.err
