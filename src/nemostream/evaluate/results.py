"""What one evaluation gave, as a file that later comparisons read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from nemostream.checkpoints.files import write_json
from nemostream.evaluate.manifest import ManifestError

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Heard:
    """One utterance and what was heard.

    Attributes:
        key: its path in the manifest.
        lang: its language.
        reference: what is said.
        text: what was recognised.
        duration: seconds of audio.
        compute: seconds of computing.
        first_word: seconds from the start of the first word to its text, or None if nothing was heard.
        final: seconds from the end of the audio to the final text.
        named: language that the model named; if it named none, the one that it was told, or None.
        words: (word, confidence) of every word heard, if the stream kept confidences.
    """

    key: str
    lang: str
    reference: str
    text: str
    duration: float
    compute: float
    first_word: float | None
    final: float
    named: str | None = None
    words: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Results:
    """One evaluation.

    Attributes:
        name: what to call it in tables.
        model: the model's name or path.
        backend: its runtime.
        att_context_size: (left, right) context.
        manifest: path of the manifest.
        utterances: what was heard, in the manifest's order.
        language: prompt for all utterances; None if each had its own.
    """

    name: str
    model: str
    backend: str
    att_context_size: tuple[int, int]
    manifest: str
    utterances: tuple[Heard, ...]
    language: str | None = None

    def save(self, path: Path) -> None:
        """Write as JSON."""
        write_json(path, {"schema_version": SCHEMA_VERSION, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ManifestError: if it is something else.
        """
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if values.pop("schema_version") != SCHEMA_VERSION:
                raise ValueError("it is of another version")
            utterances = tuple(_heard(entry) for entry in values.pop("utterances"))
            left, right = values.pop("att_context_size")
            return cls(**values, att_context_size=(left, right), utterances=utterances)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"{path} is not a results file of `nemostream eval` ({error}).") from error


def _heard(entry: dict[str, Any]) -> Heard:
    words = tuple((str(text), float(confidence)) for text, confidence in entry.pop("words", ()))
    return Heard(**entry, words=words)


def same_utterances(a: Results, b: Results) -> Sequence[tuple[Heard, Heard]]:
    """Pair two evaluations by utterance.

    Raises:
        ManifestError: if they are not of the same utterances.
    """
    ours, theirs = ({item.key: item for item in results.utterances} for results in (a, b))
    if ours.keys() != theirs.keys():
        odd = sorted(ours.keys() ^ theirs.keys())
        raise ManifestError(
            f"{a.name} and {b.name} are not of the same utterances: {len(odd)} are in one only, such as "
            f"{odd[0]}; evaluate both on one manifest."
        )
    changed = [key for key in ours if ours[key].reference != theirs[key].reference]
    if changed:
        raise ManifestError(f"{a.name} and {b.name} have different references for {changed[0]}.")
    return [(ours[key], theirs[key]) for key in ours]
