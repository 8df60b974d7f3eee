"""Phrases, beams, confidence, utterances and rewriting on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from .conftest import RATE, Run, noise


@pytest.fixture
def pauses(tmp_path: Path) -> Path:
    """Sound, two seconds of nothing, sound."""
    path = tmp_path / "pauses.flac"
    soundfile.write(path, np.concatenate([noise(2.0, 1), np.zeros((2 * RATE, 1)), noise(2.0, 2)]), RATE)
    return path


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with functions for --itn in the current folder."""
    (tmp_path / "written.py").write_text(
        "def loud(text, language):\n    return text.upper() + f' ({language})'\n"
        "def broken(text, language):\n    raise KeyError('seven')\n"
        "def nothing(text, language):\n    return None\n"
        "NUMBER = 7\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "written", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_json_shows_what_was_asked_for(transcribe: Run, audio: Path) -> None:
    plain = json.loads(transcribe(audio, "-f", "json").out)
    assert "confidence" not in plain["words"][0]
    assert not {"utterances", "alternatives"} & plain.keys()
    full = json.loads(transcribe(audio, "-f", "json", "--beam", 3, "--confidence", "--endpoint").out)
    assert all(0 < word["confidence"] <= 1 for word in full["words"])
    assert all(token["log_prob"] <= 0 for token in full["tokens"])
    scores = [item["score"] for item in full["alternatives"]]
    assert full["alternatives"][0]["text"] == full["text"]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    assert full["utterances"][0]["start"] == full["words"][0]["start"]
    confident = json.loads(transcribe(audio, "-f", "json", "--confidence").out)
    assert confident["text"] == plain["text"]


def test_phrases_from_a_file_are_those_from_the_line(transcribe: Run, audio: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("w1 w2\n\n  w7 \n")
    strong = ("--boost-score", 10)
    plain = transcribe(audio).out
    listed = transcribe(audio, "--boost", "w1 w2", "--boost", "w7", *strong).out
    assert listed != plain
    assert transcribe(audio, "--boost", f"@{tmp_path / 'names.txt'}", *strong).out == listed


def test_utterances_are_lines_and_can_be_rewritten(transcribe: Run, pauses: Path, rules: Path) -> None:
    whole = transcribe(pauses, "-l", "en-US").out
    lines = transcribe(pauses, "-l", "en-US", "--endpoint").out.splitlines()
    assert len(lines) > 1
    assert "".join("".join(lines).split()) == "".join(whole.split())  # a random model cuts within words too
    loud = transcribe(pauses, "-l", "en-US", "--endpoint", "--itn", "written:loud").out.splitlines()
    assert [line.partition(" (")[0] for line in loud] == [line.upper() for line in lines]
    one = transcribe(pauses, "-l", "en-US", "--itn", "written:loud").out
    assert one.startswith(whole.strip().upper())
    saved = json.loads(transcribe(pauses, "-l", "en-US", "--itn", "written:loud", "-f", "json").out)
    assert saved["text"] == whole.strip()
    assert [item["text"] for item in saved["utterances"]] == [one.strip()]


@pytest.mark.parametrize("rewritten", [False, True])
def test_live_text_grows_an_utterance_a_line(
    transcribe: Run,
    pauses: Path,
    rules: Path,
    stdin: Callable[[bytes], None],
    monkeypatch: pytest.MonkeyPatch,
    rewritten: bool,
) -> None:
    samples, _ = soundfile.read(pauses, dtype="int16")
    options = ("-l", "en-US", "--endpoint", *(("--itn", "written:loud") if rewritten else ()))
    expected = transcribe(pauses, *options).out
    stdin(samples.tobytes())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    grown = transcribe("-", "--rate", RATE, *options).out
    assert [line.split() for line in grown.splitlines()] == [line.split() for line in expected.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--boost-score", "3"], 2, "which has to be given as well"),
        (["--boost", "w1", "--boost-score", "11"], 2, "at most 10 was expected"),
        (["--boost", "qqq"], 1, "no pieces to spell"),
        (["--boost", "@nowhere.txt"], 1, "the phrases cannot be read (No such file or directory)"),
        (["--boost", "@empty.txt"], 1, "the file has no phrases"),
        (["--beam", "0"], 2, "not a whole number above 0"),
        (["--confidence"], 2, "-f json only"),
        (["--itn", "written:loud", "-f", "tsv"], 2, "use -f txt or json"),
        (["--itn", "written"], 2, "MODULE:FUNCTION was expected"),
        (["--itn", "nowhere:loud"], 1, "cannot be imported"),
        (["--itn", "written:quiet"], 1, "cannot be imported"),
        (["--itn", "written:NUMBER"], 1, "not a function"),
        (["--itn", "written:broken"], 1, "KeyError: 'seven'"),
        (["--itn", "written:nothing"], 1, "returned NoneType"),
    ],
)
def test_wrong_options_are_one_sentence(
    transcribe: Run, audio: Path, rules: Path, arguments: list[str], code: int, sentence: str
) -> None:
    (rules / "empty.txt").touch()
    result = transcribe(audio, *arguments)
    assert (result.code, result.out) == (code, "")
    assert len(result.err.splitlines()) == 1
    assert sentence in result.errors[0]


def test_a_closed_pipe_is_not_an_error(audio: Path, model_folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "nemostream",
        "transcribe",
        "--model",
        str(model_folder),
        *[str(audio)] * 3,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
        process.wait()
    assert (process.returncode, said) == (141, b"")
