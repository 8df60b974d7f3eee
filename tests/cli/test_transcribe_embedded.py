"""The main job, as a user does it: the embedded model on the recordings of ``examples/``, offline."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

import nemostream
from nemostream.cli.doctor import words_in_common
from nemostream.loading import embedded_bundle
from tests.conftest import REPOSITORY

from .conftest import Run

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.flac"))
LATENCIES = ("80", "160", "320", "560", "1120")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refused)


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_recognised(run: Run, example: Path) -> None:
    result = run("transcribe", example)
    assert (result.code, result.err) == (0, "")
    spoken = example.with_suffix(".txt")
    if spoken.exists():
        assert words_in_common(spoken.read_text(encoding="utf-8"), result.out) > 0.6


def test_all_formats_of_all_examples(run: Run, tmp_path: Path) -> None:
    assert run("transcribe", *EXAMPLES, "-f", "all", "-o", tmp_path).code == 0
    assert len(list(tmp_path.iterdir())) == 5 * len(EXAMPLES)
    for example in EXAMPLES:
        content = json.loads((tmp_path / f"{example.stem}.json").read_text(encoding="utf-8"))
        assert content["backend"] == "onnx"
        assert content["duration"] == pytest.approx(soundfile.info(example).duration, abs=0.001)
        words = content["words"]
        assert all(word["start"] < word["end"] <= content["duration"] + 0.08 for word in words)
        assert (tmp_path / f"{example.stem}.vtt").read_text(encoding="utf-8").startswith("WEBVTT\n")


@pytest.mark.parametrize("latency", LATENCIES)
def test_live_gives_the_tokens_of_the_file(
    run: Run, stdin: Callable[[bytes], None], tmp_path: Path, latency: str
) -> None:
    samples, rate = soundfile.read(EXAMPLES[0], dtype="int16", frames=16000 * 8)
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, rate)
    stdin(samples.astype("<i2").tobytes())
    live = json.loads(run("transcribe", "-", "--rate", rate, "--latency", latency, "-f", "json").out)
    assert live == {
        **json.loads(run("transcribe", path, "--latency", latency, "-f", "json").out),
        "file": "-",
    }


def test_an_unknown_language_lists_the_valid_ones(run: Run) -> None:
    result = run("transcribe", EXAMPLES[0], "--language", "xx-XX")
    assert result.code == 6
    assert "en" in result.errors[0]


def test_inspect_and_models_show_it(run: Run) -> None:
    inspected = run("inspect", "tiny")
    assert inspected.code == 0
    assert "graph encoder.onnx" in inspected.out
    assert "NOT AS" not in inspected.out
    assert str(embedded_bundle()) in run("models").out


def test_the_doctor_is_content(run: Run) -> None:
    result = run("doctor")
    assert result.code == 0, result.out + result.err
    assert "run onnx   works" in result.out


@pytest.mark.parametrize("seed", range(5))
def test_any_packets_give_the_same_tokens(seed: int) -> None:
    data = soundfile.read(EXAMPLES[seed % len(EXAMPLES)], dtype="int16")[0].astype("<i2").tobytes()
    model = nemostream.load()
    generator = random.Random(seed)

    def tokens(sizes: list[int]) -> list[tuple[int, int]]:
        with model.stream(latency=int(LATENCIES[seed]), encoding="s16le") as session:
            events, start = [], 0
            for size in [*sizes, len(data)]:
                events += session.feed(data[start : start + size])
                start += size
            events += session.finish()
        return [(token.id, token.frame) for event in events for token in event.tokens]

    assert tokens([generator.randint(1, 9999) for _ in range(60)]) == tokens([]) != []
