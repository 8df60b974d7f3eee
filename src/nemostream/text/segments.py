"""Segments: words put together to what a subtitle shows at once.

A segment ends with a sentence and at a pause. What is then still too long for two lines or seven seconds is
cut in two near its middle, rather after a comma or where the speaker took a breath, until it fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from nemostream.results import Transcript, Word
from nemostream.text.scripts import ends_sentence, is_punctuation, width

LINE_WIDTH = 42  # columns; the usual limit of broadcasters, a full-width character counting as two
MAX_SECONDS = 7.0
PAUSE_SECONDS = 0.7
_BREATH_SECONDS = 0.2  # a gap that invites a cut


@dataclass(frozen=True, slots=True)
class Segment:
    """A text on one or two ``lines``, shown from ``start`` to ``end`` in seconds."""

    text: str
    lines: tuple[str, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class _Part:
    """A word, or a piece of one that is too long for a line, and whether a space stands before it."""

    text: str
    start: float
    end: float
    spaced: bool

    @classmethod
    def of(cls, word: Word, spaced: bool, line_width: int) -> Iterator[Self]:
        text = " ".join(word.text.split())
        pieces = list(_pieces(text, line_width))
        seconds = (word.end - word.start) / len(pieces)
        for index, piece in enumerate(pieces):
            start = word.start + index * seconds
            end = word.end if index == len(pieces) - 1 else start + seconds
            yield cls(piece, start, end, spaced and index == 0)


def segments_of(transcript: Transcript, line_width: int = LINE_WIDTH) -> tuple[Segment, ...]:
    """Return the segments of a transcript, in order and without overlap.

    None has more than two lines of ``line_width`` columns, or lasts longer than 7 s. All segments together
    are the whole text, save that white space is written as single spaces.
    """
    parts: list[_Part] = []
    for word, spaced in zip(transcript.words, _spaced(transcript), strict=True):
        parts.extend(_Part.of(word, spaced, line_width))
    segments = []
    for phrase in _phrases(parts):
        for cue, lines in _cues(phrase, line_width):
            end = min(cue[-1].end, cue[0].start + MAX_SECONDS)  # one word may last longer than a cue may
            segments.append(Segment(_join(cue), lines, cue[0].start, end))
    return tuple(segments)


def _spaced(transcript: Transcript) -> Iterator[bool]:
    """Say for every word whether white space stands before it in the text."""
    position = 0
    for word in transcript.words:
        found = transcript.text.find(word.text, position)
        yield found > position or found < 0
        position = max(found, position) + len(word.text)


def _phrases(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    phrase: list[_Part] = []
    for part in parts:
        if phrase and (ends_sentence(phrase[-1].text) or part.start - phrase[-1].end >= PAUSE_SECONDS):
            yield phrase
            phrase = []
        phrase.append(part)
    if phrase:
        yield phrase


def _cues(parts: list[_Part], line_width: int) -> Iterator[tuple[list[_Part], tuple[str, ...]]]:
    """Cut until everything fits, and yield each cue with its lines. A single part always fits."""
    lines = _lines(parts, line_width)
    short = parts[-1].end - parts[0].start <= MAX_SECONDS
    if lines is not None and (short or len(parts) == 1):
        yield parts, lines
        return
    cut = _best_cut(parts)
    yield from _cues(parts[:cut], line_width)
    yield from _cues(parts[cut:], line_width)


def _best_cut(parts: Sequence[_Part]) -> int:
    """Return where to cut in two: in the middle half, near the middle, rather at a comma or a breath."""
    count = len(parts)

    def cost(cut: int) -> float:
        before, after = parts[cut - 1], parts[cut]
        bonus = 0.2 if is_punctuation(before.text[-1]) else 0.0
        bonus += 0.1 if after.start - before.end >= _BREATH_SECONDS else 0.0
        return abs(cut / count - 0.5) - bonus

    quarter = count // 4
    return min(range(max(1, quarter), max(2, count - quarter)), key=cost)


def _lines(parts: Sequence[_Part], line_width: int) -> tuple[str, ...] | None:
    """Return one line, or the two most equal ones, or None if two do not hold the parts."""
    whole = _join(parts)
    if width(whole) <= line_width:
        return (whole,)
    if width(whole) > 2 * line_width + 1:
        return None
    best: tuple[int, tuple[str, str]] | None = None
    for cut in range(1, len(parts)):
        first, second = _join(parts[:cut]), _join(parts[cut:])
        longest = max(width(first), width(second))
        if longest <= line_width and (best is None or longest < best[0]):
            best = longest, (first, second)
    return best[1] if best else None


def _join(parts: Sequence[_Part]) -> str:
    joined = "".join(" " + part.text if part.spaced else part.text for part in parts)
    return joined.removeprefix(" ")


def _pieces(text: str, line_width: int) -> Iterator[str]:
    piece = ""
    for character in text:
        if piece and width(piece) + width(character) > line_width:
            yield piece
            piece = ""
        piece += character
    yield piece
