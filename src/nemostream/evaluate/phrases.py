"""How often phrases that were said were heard, and how often ones that were not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemostream.evaluate.errors import unit_of, units_of
from nemostream.evaluate.normalize import NormalizerName, normalizer
from nemostream.evaluate.results import Results


@dataclass(frozen=True)
class PhraseCount:
    """One phrase in one evaluation.

    Attributes:
        phrase: as it was given.
        said: times that it is in the references.
        heard: of these, how many are in the transcript of the same utterance.
        invented: times that transcripts have it beyond what was said.
    """

    phrase: str
    said: int
    heard: int
    invented: int

    @property
    def recall(self) -> float | None:
        """Share of what was said that was heard; None if it is never said."""
        return self.heard / self.said if self.said else None


def count_phrases(results: Results, phrases: Sequence[str], name: NormalizerName) -> list[PhraseCount]:
    """Count phrases, as whole words, in normalised references and transcripts.

    Raises:
        BackendError: if the package of the normaliser is not installed.
    """
    normal = normalizer(name)
    counts = []
    for phrase in phrases:
        said = heard = invented = 0
        for item in results.utterances:
            unit = unit_of(item.lang)
            wanted, reference, text = (
                units_of(normal(part, item.lang), unit) for part in (phrase, item.reference, item.text)
            )
            expected, found = _occurrences(wanted, reference), _occurrences(wanted, text)
            said += expected
            heard += min(expected, found)
            invented += max(0, found - expected)
        counts.append(PhraseCount(phrase, said, heard, invented))
    return counts


def _occurrences(wanted: list[str], units: list[str]) -> int:
    size = len(wanted)
    if not size:
        return 0
    return sum(units[start : start + size] == wanted for start in range(len(units) - size + 1))
