"""``nemostream transcribe`` with a small random model: formats, outputs, channels, standard input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nemostream.cli.outputs import unique_stems
from tests.bundles import random_bundle

from .conftest import RATE, Run, noise

Stdin = Callable[[bytes], None]


def test_one_file_prints_its_text(transcribe: Run, audio: Path) -> None:
    result = transcribe(audio)
    assert (result.code, result.err) == (0, "")
    assert len(result.out.strip()) > 10
    assert result.out.count("\n") == 1


def test_several_files_print_a_line_each_in_their_order(transcribe: Run, audio: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.wav"
    soundfile.write(other, noise(1.0, seed=1), RATE)
    alone = [transcribe(path).out for path in (other, audio)]
    result = transcribe(other, audio)
    assert result.out == f"{other}: {alone[0]}{audio}: {alone[1]}"


def test_json_is_one_line_a_file(transcribe: Run, audio: Path) -> None:
    result = transcribe(audio, audio, "-f", "json", "--latency", "560ms", "-l", "de-DE")
    first, second = (json.loads(line) for line in result.out.splitlines())
    assert first == second
    assert first["file"] == str(audio)
    assert first["backend"] == "torch"
    assert first["att_context_size"] == [56, 6]
    assert first["duration"] == 2.0
    assert [token["piece"] for token in first["tokens"]]
    assert all(token["time"] == round(token["frame"] * 0.08, 3) for token in first["tokens"])
    assert "".join(word["text"] for word in first["words"]) == "".join(first["text"].split())


@pytest.mark.parametrize(
    ("format_name", "begins"), [("srt", "1\n00:"), ("vtt", "WEBVTT\n"), ("tsv", "start\t")]
)
def test_subtitles_of_one_file_are_printed(
    transcribe: Run, audio: Path, format_name: str, begins: str
) -> None:
    assert transcribe(audio, "-f", format_name).out.startswith(begins)


def test_latency_and_context_are_the_same_choice(transcribe: Run, audio: Path) -> None:
    by_latency = transcribe(audio, "--latency", "80").out
    assert by_latency == transcribe(audio, "--att-context", "56", "0").out
    assert by_latency != transcribe(audio, "--latency", "1120").out


def test_chunks_per_call_do_not_change_the_result(transcribe: Run, audio: Path) -> None:
    results = {transcribe(audio, "-f", "json", *more).out for more in ([], ["--chunks-per-call", "1"])}
    assert len(results) == 1


def test_an_untrained_context_warns(transcribe: Run, audio: Path) -> None:
    result = transcribe(audio, "--att-context", "42", "13")
    assert result.code == 0
    assert result.err.startswith("nemostream: warning: ")
    assert result.err.count("\n") == 1


def test_output_folder_gets_every_format_and_nothing_is_printed(
    transcribe: Run, audio: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "texts"
    result = transcribe(audio, "-f", "all", "-o", folder)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert sorted(path.name for path in folder.iterdir()) == [
        f"sound.{ext}" for ext in ("json", "srt", "tsv", "txt", "vtt")
    ]
    assert (folder / "sound.txt").read_text(encoding="utf-8") == transcribe(audio).out
    assert json.loads((folder / "sound.json").read_text(encoding="utf-8"))["file"] == str(audio)


def test_inputs_of_one_name_do_not_overwrite_each_other(transcribe: Run, audio: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / "sound.wav"
    soundfile.write(other, noise(1.0, seed=1), RATE)
    result = transcribe(audio, other, "-o", tmp_path / "out")
    assert result.code == 0
    assert f"{other} is written as sound-2.*" in result.err
    assert (tmp_path / "out" / "sound.txt").read_text() == transcribe(audio).out
    assert (tmp_path / "out" / "sound-2.txt").read_text() == transcribe(other).out


def test_unique_stems() -> None:
    names = ["a/x.wav", "b/x.wav", "x-2.wav", "X.flac", "-", "x.tar.gz"]
    assert unique_stems(names) == ("x", "x-3", "x-2", "X-4", "stdin", "x.tar")


def test_a_folder_that_cannot_be_made_or_written(transcribe: Run, audio: Path, tmp_path: Path) -> None:
    result = transcribe(audio, "-o", audio)
    assert result.code == 1
    assert "the output folder cannot be made" in result.errors[0]
    (tmp_path / "out" / "sound.txt").mkdir(parents=True)
    result = transcribe(audio, "-o", tmp_path / "out")
    assert result.code == 1
    assert "the result cannot be written (Is a directory)" in result.errors[0]


def test_channels(transcribe: Run, tmp_path: Path) -> None:
    both = np.concatenate([noise(1.0, 1), noise(1.0, 2)], axis=1)
    paths = [tmp_path / name for name in ("left.wav", "right.wav", "mixed.wav", "both.wav")]
    for path, samples in zip(paths, (both[:, 0], both[:, 1], both.mean(axis=1), both), strict=True):
        soundfile.write(path, samples, RATE, subtype="FLOAT")
    left, right, mixed = (transcribe(path).out for path in paths[:3])
    assert transcribe(paths[3], "--channels", "0").out == left
    assert transcribe(paths[3], "--channels", "1").out == right
    assert transcribe(paths[3]).out == mixed
    assert transcribe(paths[3], "--channels", "split").out == f"[0] {left}[1] {right}"
    content = json.loads(transcribe(paths[3], "--channels", "split", "-f", "json").out)
    assert [channel["text"] for channel in content["channels"]] == [left.strip(), right.strip()]
    absent = transcribe(paths[3], "--channels", "2")
    assert absent.code == 3
    assert "index from 0 to 1" in absent.errors[0]


@pytest.mark.parametrize("latency", ["80", "320"])
def test_standard_input_gives_the_tokens_of_the_file(
    transcribe: Run, stdin: Stdin, tmp_path: Path, latency: str
) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(2.0), RATE, subtype="PCM_16")
    pcm, _ = soundfile.read(path, dtype="int16")
    expected = json.loads(transcribe(path, "-f", "json", "--latency", latency).out)
    stdin(pcm.astype("<i2").tobytes())
    result = transcribe("-", "--rate", RATE, "-f", "json", "--latency", latency)
    assert result.code == 0
    assert json.loads(result.out) == {**expected, "file": "-"}


def test_standard_input_with_channels_encoding_and_folder(
    transcribe: Run, stdin: Stdin, tmp_path: Path
) -> None:
    both = np.concatenate([noise(1.0, 1), noise(1.0, 2)], axis=1)
    soundfile.write(tmp_path / "both.wav", both, 8000, subtype="FLOAT")
    expected = transcribe(tmp_path / "both.wav", "--channels", "split").out
    stdin(both.astype("<f4").tobytes())
    raw = ["-", "--rate", "8000", "--encoding", "f32le", "--input-channels", "2", "--channels", "split"]
    assert transcribe(*raw, "-o", tmp_path).code == 0
    assert (tmp_path / "stdin.txt").read_text() == expected


def test_standard_input_grows_on_a_terminal(
    transcribe: Run, stdin: Stdin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin((noise(2.0)[:, 0] * 32767).astype("<i2").tobytes())
    expected = transcribe("-", "--rate", RATE).out
    stdin((noise(2.0)[:, 0] * 32767).astype("<i2").tobytes())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert transcribe("-", "--rate", RATE).out == expected


def test_progress_is_for_terminals_only(
    transcribe: Run, audio: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = transcribe(audio)
    assert expected.err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    shown = transcribe(audio)
    assert shown.out == expected.out
    assert "sound.flac" in shown.err
    assert transcribe(audio, "--quiet").err == ""


def test_verbose_says_how_fast_it_was(transcribe: Run, audio: Path) -> None:
    result = transcribe(audio, "--verbose")
    assert "2.00 s of audio in " in result.err
    assert "att_context_size [56, 3]" in result.err


def test_jobs_change_neither_order_nor_results_nor_errors(
    run: Run, transcribe: Run, audio: Path, tmp_path: Path
) -> None:
    names = [audio]
    for index in range(5):
        names.append(tmp_path / f"n{index}.wav")
        soundfile.write(names[-1], noise(3.0 - index / 2, seed=index), RATE)
    names[3:3] = [tmp_path / "missing.wav"]
    alone = transcribe(*names, "-f", "json")
    together = transcribe(*names, "-f", "json", "--jobs", "3")
    assert (together.code, together.out, together.err) == (alone.code, alone.out, alone.err)
    assert (alone.code, len(alone.errors)) == (3, 1)
    bundle = ("transcribe", "--model", random_bundle(True), *names, "-f", "json")
    assert run(*bundle, "-j", "3").out == run(*bundle).out
