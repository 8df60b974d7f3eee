"""Phones for training, from the synthesiser flite (Debian package ``flite``).

    python recipes/tiny/phones.py speak --texts texts.tsv --out work/cache --hours 3
    python recipes/tiny/phones.py annotate work/cache

``speak`` makes a corpus ``flite`` whose phones have times: a model learns from it which sounds are which
within minutes, where CTC or RNN-T alone take hours to find any alignment. ``annotate`` adds the phones of its
text to every clip of every corpus in a cache, without times, for the auxiliary CTC loss.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile

from nemostream.features import log_mel

VOICES = ("slt", "awb", "rms", "kal16")
# fmt: off
PHONES = (  # flite's CMU set, without its pause
    "aa", "ae", "ah", "ao", "aw", "ax", "ay", "b", "ch", "d", "dh", "eh", "er", "ey", "f", "g", "hh",
    "ih", "iy", "jh", "k", "l", "m", "n", "ng", "ow", "oy", "p", "r", "s", "sh", "t", "th", "uh", "uw",
    "v", "w", "y", "z", "zh",
)
# fmt: on
PAUSE = "pau"


def phones_of(text: str, *options: str) -> list[tuple[str, float]]:
    """Phones (pauses included) and the seconds at which they end, as flite speaks ``text``."""
    done = subprocess.run(
        ["flite", *options, "-psdur", "-t", text], check=True, capture_output=True, text=True, timeout=60
    )
    pairs = (item.rsplit(":", 1) for item in done.stdout.split())
    return [(phone, float(end)) for phone, end in pairs]


def speak(texts: list[str], out: Path, hours: float, seed: int) -> None:
    """Write the corpus ``flite`` with times of phones."""
    generator = random.Random(seed)
    generator.shuffle(texts)
    arrays, index, offset = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        for text in texts:
            if offset >= hours * 360000:
                break
            voice = generator.choice(VOICES)
            options = ["-voice", voice, "--setf", f"duration_stretch={generator.uniform(0.75, 1.25):.3f}"]
            timed = phones_of(text, *options, "-o", str(path))
            samples, rate = soundfile.read(path, dtype="float32")
            if rate != 16000 or any(phone not in PHONES and phone != PAUSE for phone, _ in timed):
                continue
            mel = log_mel(samples * np.float32(generator.uniform(0.2, 1.2))).astype(np.float16)
            index.append(
                {
                    "offset": offset,
                    "frames": len(mel),
                    "text": text,
                    "lang": "en",
                    "phones": " ".join(phone for phone, _ in timed),
                    "ends": [round(100 * end) for _, end in timed],
                }
            )
            arrays.append(mel)
            offset += len(mel)
    np.save(out / "flite.mel.npy", np.concatenate(arrays))
    write_index(out / "flite.jsonl", index)
    print(f"flite: {len(index)} clips, {offset / 360000:.2f} h", file=sys.stderr)


def annotate(cache: Path) -> None:
    """Add phones to the English clips of every corpus that lacks them."""
    known: dict[str, str] = {}
    for path in sorted(cache.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.open(encoding="utf-8")]
        for row in rows:
            if row["lang"] == "en" and "phones" not in row:
                if row["text"] not in known:
                    timed = phones_of(row["text"], "-voice", "kal16", "-o", "none")
                    known[row["text"]] = " ".join(phone for phone, _ in timed if phone in PHONES)
                row["phones"] = known[row["text"]]
        write_index(path, rows)
        print(f"{path.stem}: {len(rows)} clips", file=sys.stderr)


def write_index(path: Path, rows: list[dict[str, object]]) -> None:
    """Write an index in one move, so that a kill can't tear it."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    temporary.rename(path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    speaking = commands.add_parser("speak", help="synthesise a corpus with times of phones")
    speaking.add_argument("--texts", type=Path, required=True, help="file that texts.py wrote")
    speaking.add_argument("--out", type=Path, required=True)
    speaking.add_argument("--hours", type=float, default=3.0)
    speaking.add_argument("--seed", type=int, default=0)
    annotating = commands.add_parser("annotate", help="add phones to every corpus of a cache")
    annotating.add_argument("cache", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "annotate":
        annotate(arguments.cache)
        return
    texts = [line.rstrip("\n").split("\t")[-1] for line in arguments.texts.open(encoding="utf-8")]
    speak(texts, arguments.out, arguments.hours, arguments.seed)


if __name__ == "__main__":
    main()
