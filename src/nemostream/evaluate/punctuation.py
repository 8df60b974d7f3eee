"""Scores of punctuation and capitals, on the words that were recognised right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nemostream.evaluate.errors import align
from nemostream.evaluate.normalize import simple

MARKS = {  # mark -> what is written for it
    "full stop": ".。।．",
    "comma": ",，、،",
    "question mark": "?？؟",
}


@dataclass(frozen=True)
class Score:
    """Hits, false alarms and misses.

    Attributes:
        right: set where the reference has it.
        extra: set where the reference does not.
        missing: not set where the reference has it.
    """

    right: int = 0
    extra: int = 0
    missing: int = 0

    @property
    def precision(self) -> float | None:
        """Share of what was set that is right; None if nothing was set."""
        return self.right / (self.right + self.extra) if self.right + self.extra else None

    @property
    def recall(self) -> float | None:
        """Share of what should be set that was; None if nothing should be."""
        return self.right / (self.right + self.missing) if self.right + self.missing else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of both; None if there is nothing to judge."""
        count = 2 * self.right + self.extra + self.missing
        return 2 * self.right / count if count else None

    def __add__(self, other: Score) -> Score:
        return Score(self.right + other.right, self.extra + other.extra, self.missing + other.missing)

    @classmethod
    def of(cls, heard: bool, expected: bool) -> Score:
        """One decision."""
        return cls(int(heard and expected), int(heard and not expected), int(expected and not heard))


def has_case_and_marks(texts: Iterable[str]) -> bool:
    """Say whether texts are written with capitals and punctuation, so that there is anything to score."""
    joined = " ".join(texts)
    return (
        any(c.islower() for c in joined)
        and any(c.isupper() for c in joined)
        and any(mark in joined for marks in MARKS.values() for mark in marks)
    )


def formatting_scores(reference: str, heard: str) -> dict[str, Score]:
    """Score the capitals and marks of one utterance.

    Words are aligned without case and punctuation, and only those that are equal then are judged, so that a
    recognition error is not counted twice. A mark belongs to the word before it. "capital" is a word's
    first letter.
    """
    said, found = _words(reference), _words(heard)
    scores = {name: Score() for name in (*MARKS, "capital")}
    if not said or not found:
        return scores
    output = align([word for word, _ in said], [word for word, _ in found])
    for chunk in output.alignments[0]:
        if chunk.type != "equal":
            continue
        for offset in range(chunk.ref_end_idx - chunk.ref_start_idx):
            expected, given = said[chunk.ref_start_idx + offset][1], found[chunk.hyp_start_idx + offset][1]
            for name, marks in MARKS.items():
                scores[name] += Score.of(_ends_with(given, marks), _ends_with(expected, marks))
            scores["capital"] += Score.of(_is_capital(given), _is_capital(expected))
    return scores


def _words(text: str) -> list[tuple[str, str]]:
    """(bare word, word as written), without what is punctuation only."""
    words = ((simple(word).replace(" ", ""), word) for word in text.split())
    return [(bare, written) for bare, written in words if bare]


def _ends_with(word: str, marks: str) -> bool:
    return word.rstrip("\"'»”’)]").endswith(tuple(marks))


def _is_capital(word: str) -> bool:
    return next((c.isupper() for c in word if c.isalpha()), False)
