"""Word error rate of a model on folders of recordings, at every latency, as a table.

    python recipes/tiny/evaluate.py PARTS_FOLDER [--model tiny] [--latency 1120 320]

A part is a folder with ``manifest.jsonl``. Texts are compared without case and punctuation. The part
``digits`` holds single digits, which are joined into strings of five, as they are spoken in practice.
"""

from __future__ import annotations

import argparse
import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import nemostream
from nemostream.audio import load_audio

Float32 = NDArray[np.float32]

ENGLISH_PARTS = ("synthetic", "orders", "kathleen", "digits", "matthes", "read-en")
LATENCIES = (1120, 560, 320, 160, 80)
_STRING = 5


@dataclass(frozen=True)
class Result:
    """What came out of one part: WER by latency, and (text, transcript) at the first latency."""

    clips: int
    words: int
    rates: dict[int, float]
    transcripts: list[tuple[str, str]]


def normalise(text: str) -> str:
    """NFKC, lower case, no punctuation or symbols; an apostrophe inside a word goes without a gap."""
    folded = unicodedata.normalize("NFKC", text).lower().replace("'", "").replace("\u2019", "")
    kept = (" " if unicodedata.category(character)[0] in "PS" else character for character in folded)
    return " ".join("".join(kept).split())


def recordings(folder: Path) -> list[tuple[Float32, str]]:
    """Samples and text of every clip of a part."""
    with (folder / "manifest.jsonl").open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    clips = [(load_audio(folder / entry["audio_filepath"]), entry["text"]) for entry in entries]
    if folder.name != "digits":
        return clips
    order = np.random.default_rng(0).permutation(len(clips))
    pause = np.zeros(1600, np.float32)
    strings = []
    for start in range(0, len(clips) - _STRING + 1, _STRING):
        chosen = [clips[index] for index in order[start : start + _STRING]]
        audio = [part for samples, _ in chosen for part in (samples / np.abs(samples).max() * 0.5, pause)]
        strings.append((np.concatenate(audio), " ".join(text for _, text in chosen)))
    return strings


def in_a_row(clips: list[tuple[Float32, str]]) -> list[tuple[Float32, str]]:
    """The clips of a part as one recording, with pauses of half a second."""
    pause = np.zeros(8000, np.float32)
    audio = [part for samples, _ in clips for part in (samples, pause)]
    return [(np.concatenate(audio), " ".join(text for _, text in clips))]


def word_error_rate(
    model: nemostream.Model, clips: list[tuple[Float32, str]], latency: int
) -> tuple[float, list[str]]:
    """WER over all words of the clips, and the transcripts."""
    heard = [model.transcribe(samples, latency=latency).text for samples, _ in clips]
    reference = [normalise(text) for _, text in clips]
    return float(jiwer.wer(reference, [normalise(text) for text in heard])), heard


def evaluate(
    model: nemostream.Model,
    folder: Path,
    parts: list[str],
    latencies: list[int],
    limit: int | None = None,
    joined: bool = False,
) -> dict[str, Result]:
    """Word error rate of every part at every latency, of each clip alone or of all in a row."""
    results = {}
    for part in parts:
        clips = recordings(folder / part)[:limit]
        if joined:
            clips = in_a_row(clips)
        rates, heard = {}, []
        for latency in latencies:
            rates[latency], transcripts = word_error_rate(model, clips, latency)
            heard = heard or transcripts
        words = sum(len(normalise(text).split()) for _, text in clips)
        pairs = [(text, guess) for (_, text), guess in zip(clips, heard, strict=True)]
        results[part] = Result(len(clips), words, rates, pairs)
    return results


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with one sub-folder per part")
    parser.add_argument("--parts", nargs="+", default=list(ENGLISH_PARTS))
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--latency", type=int, nargs="+", default=list(LATENCIES))
    parser.add_argument("--show", type=int, default=0, help="print this many transcripts of each part")
    parser.add_argument("--limit", type=int, help="use only the first clips of each part")
    parser.add_argument("--in-a-row", action="store_true", help="the clips of a part as one recording")
    arguments = parser.parse_args()
    model = nemostream.load(arguments.model)
    table = Table("part", "clips", "words", *(f"{latency} ms" for latency in arguments.latency))
    results = evaluate(
        model,
        arguments.folder,
        arguments.parts,
        arguments.latency,
        arguments.limit,
        arguments.in_a_row,
    )
    for part, result in results.items():
        for text, guess in result.transcripts[: arguments.show]:
            print(f"  {text}\n> {guess}\n")
        cells = [f"{100 * rate:.1f}" for rate in result.rates.values()]
        table.add_row(part, str(result.clips), str(result.words), *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
