"""How well the confidence of a word tells whether it was recognised right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nemostream.evaluate.errors import align, unit_of
from nemostream.evaluate.normalize import simple
from nemostream.evaluate.results import Heard, Results


@dataclass(frozen=True)
class ConfidenceScore:
    """Confidence of the words that were heard, in languages that are scored by words.

    Attributes:
        right: words that were said.
        wrong: words that were not said there.
        mean_right: mean confidence of the right ones; None if there are none.
        mean_wrong: the same of the wrong ones.
        separation: chance that a right word has more confidence than a wrong one (the area under the ROC
            curve): 0.5 tells nothing, 1 everything; None if either kind is missing.
    """

    right: int
    wrong: int
    mean_right: float | None
    mean_wrong: float | None
    separation: float | None


def confidence_score(results: Results) -> ConfidenceScore | None:
    """Score an evaluation that kept confidences; None for any other.

    Words are compared as `simple` has them, whatever the normaliser of the report.
    """
    judged = [pair for item in results.utterances for pair in _judged(item)]
    if not judged:
        return None
    right, wrong = (
        np.sort([confidence for confidence, good in judged if good is kind]) for kind in (True, False)
    )
    separation = None
    if right.size and wrong.size:
        below = np.searchsorted(wrong, right, "left") + np.searchsorted(wrong, right, "right")
        separation = float(below.mean() / 2 / wrong.size)
    return ConfidenceScore(
        right=right.size,
        wrong=wrong.size,
        mean_right=float(right.mean()) if right.size else None,
        mean_wrong=float(wrong.mean()) if wrong.size else None,
        separation=separation,
    )


def _judged(item: Heard) -> Iterator[tuple[float, bool]]:
    """Yield the confidence of every word heard and whether it was said there."""
    if unit_of(item.lang) != "word":
        return
    bare = ((simple(text).replace(" ", ""), confidence) for text, confidence in item.words)
    found = [(text, confidence) for text, confidence in bare if text]
    said = simple(item.reference).split()
    if not found:
        return
    good = [False] * len(found)
    if said:
        for chunk in align(said, [text for text, _ in found]).alignments[0]:
            if chunk.type == "equal":
                good[chunk.hyp_start_idx : chunk.hyp_end_idx] = [True] * (
                    chunk.hyp_end_idx - chunk.hyp_start_idx
                )
    yield from zip((confidence for _, confidence in found), good, strict=True)
