"""Turn manifests of recordings into what training reads: one mel array and one index per corpus.

    python recipes/tiny/prepare.py --out work/cache CORPUS_FOLDER...

A corpus folder holds ``manifest.jsonl`` (``audio_filepath``, ``text``; optional ``lang``, ``speaker``,
``source``). The corpus becomes ``NAME.mel.npy`` ([frames, 128] float16) and ``NAME.jsonl``. Folders named
``digits`` hold single digits and are joined into strings. Running it again skips what is there.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemostream.audio import load_audio
from nemostream.features import log_mel

Float32 = NDArray[np.float32]

_UNSPEAKABLE = re.compile(r"[^A-Za-zÀ-ÿ .,?!'\"\-:;]")  # digits and symbols have no single reading
_DIGIT_STRINGS = 3000


def clean_text(text: str) -> str | None:
    """Return the text with plain quotes and single spaces, or None if it can't be trained on."""
    for fancy, plain in (("\u2019", "'"), ("\u2018", "'"), ("\u201c", '"'), ("\u201d", '"'), ("\u2013", "-")):
        text = text.replace(fancy, plain)
    text = re.sub(r"[;:]", ",", text.replace("--", ", "))
    text = " ".join(text.split())
    return None if not text or _UNSPEAKABLE.search(text) else text


def join_digits(
    folder: Path, entries: list[dict[str, str]], seed: int = 0
) -> Iterator[tuple[Float32, dict[str, str]]]:
    """Join single digits of one speaker into strings of two to eight, with short pauses."""
    generator = random.Random(seed)
    by_speaker: dict[str, list[dict[str, str]]] = {}
    for entry in entries:
        by_speaker.setdefault(entry["speaker"], []).append(entry)
    speakers = sorted(by_speaker)
    for _ in range(_DIGIT_STRINGS):
        speaker = generator.choice(speakers)
        chosen = [generator.choice(by_speaker[speaker]) for _ in range(generator.randint(2, 8))]
        parts: list[Float32] = []
        for entry in chosen:
            samples = load_audio(folder / entry["audio_filepath"])
            pause = np.zeros(int(generator.uniform(0.02, 0.3) * 16000), np.float32)
            parts += [samples / max(0.05, float(np.abs(samples).max())) * 0.5, pause]
        text = " ".join(entry["text"] for entry in chosen).capitalize() + "."
        yield np.concatenate(parts), {"text": text, "lang": "en", "speaker": speaker}


def clips(folder: Path) -> Iterator[tuple[Float32, dict[str, str]]]:
    """Yield samples [N] at 16 kHz and the manifest entry of every usable clip."""
    with (folder / "manifest.jsonl").open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    if folder.name == "digits":
        yield from join_digits(folder, entries)
        return
    for entry in entries:
        text = clean_text(entry["text"])
        if text is not None:
            yield load_audio(folder / entry["audio_filepath"]), {**entry, "text": text}


def prepare(folder: Path, out: Path, name: str) -> None:
    """Write the mel array and the index of one corpus."""
    arrays, index, offset = [], [], 0
    for samples, entry in clips(folder):
        mel = log_mel(samples).astype(np.float16)
        if len(mel) < 16:
            continue
        index.append(
            {
                "offset": offset,
                "frames": len(mel),
                "text": entry["text"],
                "lang": entry.get("lang") or "en",
            }
        )
        arrays.append(mel)
        offset += len(mel)
    np.save(out / f"{name}.mel.npy", np.concatenate(arrays))
    with (out / f"{name}.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in index)
    print(f"{name}: {len(index)} clips, {offset / 360000:.2f} h", file=sys.stderr)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="+", type=Path, help="folders with a manifest.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for folder in arguments.corpora:
        if not (arguments.out / f"{folder.name}.jsonl").exists():
            prepare(folder, arguments.out, folder.name)


if __name__ == "__main__":
    main()
