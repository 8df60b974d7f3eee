"""What favouring phrases does: `python -m benchmarks.boosting FOLDER` makes the table of docs/decoding.md.

The phrases of a part are the words of six letters or more that are said in it and in no other part: what
somebody who knows the subject would list. Recall is theirs in their own part; "elsewhere" are the other
parts, where none of them is said.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nemostream
from nemostream.evaluate.bootstrap import Interval, paired_bootstrap
from nemostream.evaluate.manifest import Utterance, read_manifest
from nemostream.evaluate.phrases import count_phrases
from nemostream.evaluate.results import Heard, Results
from nemostream.evaluate.summary import utterance_errors

PARTS = ("orders", "kathleen", "read-en", "synthetic")
LEAST_LETTERS = 6
LATENCY = 560

Parts = Mapping[str, Sequence[Utterance]]


@dataclass(frozen=True)
class Effect:
    """What the phrases of one part did.

    Attributes:
        part: whose phrases they are.
        beam: of the search; 1 is greedy.
        phrases: how many.
        said: how often they are said in their part.
        heard: how often they were heard there, without and with being favoured.
        invented: how often they were heard in all parts though not said, without and with.
        here: word error rate of their part, with minus without.
        elsewhere: the same of all other parts together.
    """

    part: str
    beam: int
    phrases: int
    said: int
    heard: tuple[int, int]
    invented: tuple[int, int]
    here: Interval
    elsewhere: Interval


def read_parts(folder: Path, names: Sequence[str] = PARTS) -> Parts:
    """Read the manifests of all parts."""
    return {name: read_manifest(folder / name / "manifest.jsonl") for name in names}


def own_words(parts: Parts, part: str) -> list[str]:
    """Words of `LEAST_LETTERS` or more that are said in a part and in no other."""

    def words(name: str) -> set[str]:
        return set(re.findall(r"[a-z']+", " ".join(item.text for item in parts[name]).lower()))

    elsewhere = set().union(*(words(name) for name in parts if name != part))
    return sorted(word for word in words(part) - elsewhere if len(word) >= LEAST_LETTERS)


def transcribe(
    model: nemostream.Model, parts: Parts, phrases: Sequence[str], beam: int
) -> dict[str, Results]:
    """Transcribe all parts; with no phrases, as it is without them."""
    found = {}
    for name, items in parts.items():
        heard = []
        for item in items:
            text = model.transcribe(item.audio, latency=LATENCY, beam=beam, boost=phrases).text
            heard.append(Heard(item.key, item.lang, item.text, text, 1.0, 0.0, None, 0.0))
        found[name] = Results(name, "", model.backend, model.att_context(LATENCY), "", tuple(heard))
    return found


def measure(model: nemostream.Model, parts: Parts, boosted: Sequence[str], beam: int) -> list[Effect]:
    """Favour the words of each part in ``boosted`` in turn."""
    plain = transcribe(model, parts, [], beam)
    effects = []
    for part in boosted:
        phrases = own_words(parts, part)
        favoured = transcribe(model, parts, phrases, beam)
        counts = [
            {name: count_phrases(results, phrases, "simple") for name, results in run.items()}
            for run in (plain, favoured)
        ]
        said, heard, invented = (
            [sum(getattr(count, kind) for name in names for count in run[name]) for run in counts]
            for kind, names in (("said", [part]), ("heard", [part]), ("invented", list(parts)))
        )
        effects.append(
            Effect(
                part, beam, len(phrases), said[0], (heard[0], heard[1]), (invented[0], invented[1]),
                here=_difference(plain, favoured, [part]),
                elsewhere=_difference(plain, favoured, [name for name in parts if name != part]),
            )
        )  # fmt: skip
    return effects


def _difference(plain: dict[str, Results], favoured: dict[str, Results], names: Sequence[str]) -> Interval:
    before = [errors for name in names for errors in utterance_errors(plain[name])]
    after = [errors for name in names for errors in utterance_errors(favoured[name])]
    strata = [name for name in names for _ in plain[name].utterances]
    return paired_bootstrap(
        [item.total for item in before],
        [item.total for item in after],
        [item.units for item in before],
        strata,
    )


def table(effects: Sequence[Effect]) -> str:
    """The effects in Markdown."""
    lines = [
        "| words of | decoding | words | said | recall | invented | Δ WER there | Δ WER elsewhere |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for item in effects:
        before, after = (f"{100 * heard / item.said:.0f} %" for heard in item.heard)
        decoding = "greedy" if item.beam == 1 else f"beam {item.beam}"
        lines.append(
            f"| {item.part} | {decoding} | {item.phrases} | {item.said} | {before} → {after} "
            f"| {item.invented[0]} → {item.invented[1]} | {_points(item.here)} | {_points(item.elsewhere)} |"
        )
    return "\n".join(lines)


def _points(interval: Interval) -> str:
    numbers = [f"{100 * value:+.1f}" for value in (interval.difference, interval.low, interval.high)]
    return f"{numbers[0]} ({numbers[1]}…{numbers[2]})".replace("-", "−")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with a folder for every part, each with a manifest.jsonl")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4])
    arguments = parser.parse_args()
    model, parts = nemostream.load(arguments.model, threads=1), read_parts(arguments.folder)
    effects = [
        item for beam in arguments.beam for item in measure(model, parts, ("orders", "kathleen"), beam)
    ]
    print(table(effects))


if __name__ == "__main__":
    main()
