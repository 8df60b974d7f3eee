"""The five output formats."""

from __future__ import annotations

import json
import re

from nemostream.results import Token, Transcript, Word
from nemostream.text.writers import WRITERS, Recognition, to_json, to_srt, to_tsv, to_txt, to_vtt

HELLO = Transcript(
    "Hello <you> & me. Bye --> now.",
    "en-US",
    5.0004,
    (Token(7, "\u2581Hello", 2), Token(1, "<en-US>", 40)),
    (
        Word("Hello", 0.16, 0.5),
        Word("<you>", 0.5, 0.8),
        Word("&", 0.8, 0.88),
        Word("me.", 1.0, 1.2345678),
        Word("Bye", 3661.04, 3661.2),
        Word("-->", 3661.2, 3661.36),
        Word("now.", 3661.36, 3661.9996),
    ),
)
REPLY = Transcript("Yes.", None, 5.0, (), (Word("Yes.", 2.0, 2.4),))


def recognition(*transcripts: Transcript, split: bool = False) -> Recognition:
    return Recognition("a.wav", "tiny", "onnx", (56, 3), transcripts, split)


def test_every_format_has_a_writer() -> None:
    assert list(WRITERS) == ["txt", "srt", "vtt", "tsv", "json"]


def test_txt() -> None:
    assert to_txt(recognition(HELLO)) == HELLO.text + "\n"
    assert to_txt(recognition(HELLO, REPLY, split=True)) == f"[0] {HELLO.text}\n[1] Yes.\n"


def test_srt() -> None:
    assert to_srt(recognition(HELLO)) == (
        "1\n00:00:00,160 --> 00:00:01,235\nHello <you> & me.\n\n"
        "2\n01:01:01,040 --> 01:01:02,000\nBye -> now.\n\n"
    )


def test_vtt() -> None:
    assert to_vtt(recognition(HELLO)) == (
        "WEBVTT\n\n"
        "00:00:00.160 --> 00:00:01.235\nHello &lt;you&gt; &amp; me.\n\n"
        "01:01:01.040 --> 01:01:02.000\nBye --&gt; now.\n\n"
    )


def test_tsv() -> None:
    assert to_tsv(recognition(HELLO)) == (
        "start\tend\ttext\n160\t1235\tHello <you> & me.\n3661040\t3662000\tBye --> now.\n"
    )


def test_json() -> None:
    written = to_json(recognition(HELLO))
    assert written.count("\n") == 1
    content = json.loads(written)
    assert list(content) == [
        "file", "model", "backend", "language", "duration", "att_context_size", "text", "words", "tokens",
    ]  # fmt: skip
    assert content["language"] == "en-US"
    assert content["duration"] == 5.0
    assert content["att_context_size"] == [56, 3]
    assert content["words"][3] == {"text": "me.", "start": 1.0, "end": 1.235}
    assert content["tokens"][0] == {"id": 7, "piece": "\u2581Hello", "frame": 2, "time": 0.16}


def test_split_channels_are_merged_by_time_and_labelled() -> None:
    both = recognition(HELLO, REPLY, split=True)
    assert [line for line in to_srt(both).split("\n") if line.startswith("[")] == [
        "[0] Hello <you> & me.",
        "[1] Yes.",
        "[0] Bye -> now.",
    ]
    assert re.findall("<v .*", to_vtt(both)) == [
        "<v Channel 0>Hello &lt;you&gt; &amp; me.",
        "<v Channel 1>Yes.",
        "<v Channel 0>Bye --&gt; now.",
    ]
    assert to_tsv(both).split("\n")[:3] == [
        "start\tend\ttext\tchannel",
        "160\t1235\tHello <you> & me.\t0",
        "2000\t2400\tYes.\t1",
    ]
    content = json.loads(to_json(both))
    assert list(content) == ["file", "model", "backend", "att_context_size", "channels"]
    assert [channel["channel"] for channel in content["channels"]] == [0, 1]
    assert content["channels"][1]["text"] == "Yes."


def test_labels_count_towards_the_width_of_a_line() -> None:
    words = tuple(Word("word", index * 0.2, index * 0.2 + 0.2) for index in range(30))
    long = Transcript(" ".join(word.text for word in words), None, 9.0, (), words)
    lines = to_srt(recognition(long, REPLY, split=True)).split("\n")
    assert max(map(len, lines)) <= 42


def test_silence() -> None:
    silent = recognition(Transcript("", None, 3.0, (), ()))
    assert [writer(silent) for writer in (to_txt, to_srt, to_vtt, to_tsv)] == [
        "\n",
        "",
        "WEBVTT\n\n",
        "start\tend\ttext\n",
    ]
    assert json.loads(to_json(silent))["words"] == []
