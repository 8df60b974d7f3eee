"""Error counts of one utterance or many, by jiwer's alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from nemostream.checkpoints.files import optional_module
from nemostream.evaluate.normalize import CHARACTER_LANGUAGES, language_code

Unit = Literal["word", "character"]


@dataclass(frozen=True, slots=True)
class Errors:
    """Counts, which add up.

    Attributes:
        insertions: units that were heard and not said.
        deletions: units that were said and not heard.
        substitutions: units that were heard as others.
        units: units that were said.
    """

    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    units: int = 0

    @property
    def total(self) -> int:
        """Edits."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def rate(self) -> float:
        """Edits per unit; of an empty reference 0 if nothing was heard, else 1 for each unit heard."""
        return self.total / self.units if self.units else float(self.total)

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.substitutions + other.substitutions,
            self.units + other.units,
        )

    @classmethod
    def sum(cls, counts: Sequence[Errors]) -> Self:
        """All counts together."""
        return cls(
            sum(count.insertions for count in counts),
            sum(count.deletions for count in counts),
            sum(count.substitutions for count in counts),
            sum(count.units for count in counts),
        )


def unit_of(lang: str) -> Unit:
    """What a language is scored by: characters for Japanese, Chinese, Korean and Thai, else words."""
    return "character" if language_code(lang) in CHARACTER_LANGUAGES else "word"


def units_of(text: str, unit: Unit) -> list[str]:
    """Words, or characters without spaces."""
    return text.split() if unit == "word" else [character for character in text if not character.isspace()]


def count_errors(reference: str, heard: str, unit: Unit) -> Errors:
    """Count the errors between two texts, which are normalised already.

    Raises:
        BackendError: if jiwer is not installed.
    """
    said, found = units_of(reference, unit), units_of(heard, unit)
    if not said:
        return Errors(insertions=len(found))
    output = align(said, found)
    return Errors(output.insertions, output.deletions, output.substitutions, len(said))


def align(said: Sequence[str], found: Sequence[str]) -> Any:
    """jiwer's ``WordOutput`` for two lists of units, ``said`` not empty."""
    jiwer = optional_module("jiwer", "eval", "Counting errors")
    # jiwer splits text at spaces, and neither words nor characters have any left
    return jiwer.process_words(" ".join(said), " ".join(found))
