"""Scores of one evaluation: by language and pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nemostream.config import FRAME_MS
from nemostream.evaluate.confidence import ConfidenceScore, confidence_score
from nemostream.evaluate.errors import Errors, Unit, count_errors, unit_of
from nemostream.evaluate.languages import LanguageScore, language_scores
from nemostream.evaluate.normalize import NormalizerName, language_code, normalizer
from nemostream.evaluate.punctuation import Score, formatting_scores, has_case_and_marks
from nemostream.evaluate.results import Heard, Results

POOLED: dict[Unit, str] = {"word": "pooled WER", "character": "pooled CER"}
METRIC: dict[Unit, str] = {"word": "WER", "character": "CER"}


@dataclass(frozen=True)
class GroupScore:
    """Scores of one language, or of all that are scored by one unit.

    Attributes:
        name: language code, or one of `POOLED`.
        unit: what the rate counts.
        utterances: number of them.
        errors: counts.
        characters: counts by character, whatever the unit.
        utterances_wrong: utterances with an error.
    """

    name: str
    unit: Unit
    utterances: int
    errors: Errors
    characters: Errors
    utterances_wrong: int


@dataclass(frozen=True)
class Timing:
    """Speed of one evaluation; latencies in seconds as (median, 95th percentile), None if there are none.

    Attributes:
        real_time_factor: seconds of computing per second of audio.
        first_word: from the start of the first word to its text.
        final: from the end of the audio to the final text.
    """

    real_time_factor: float
    first_word: tuple[float, float] | None
    final: tuple[float, float]


@dataclass(frozen=True)
class Summary:
    """All scores of one evaluation.

    Attributes:
        name: of the evaluation.
        about: what was run, in words.
        normalizer: that was used.
        groups: languages in alphabetical order, then what is pooled.
        timing: speed.
        formatting: mark or "capital" -> score; None if the references are written without.
        languages: how often the model named the right language, if it had to.
        confidence: whether it tells right words from wrong ones, if it was kept.
    """

    name: str
    about: str
    normalizer: NormalizerName
    groups: tuple[GroupScore, ...]
    timing: Timing
    formatting: dict[str, Score] | None
    languages: tuple[LanguageScore, ...] = ()
    confidence: ConfidenceScore | None = None

    def group(self, name: str) -> GroupScore | None:
        """The scores of one language or pool."""
        return next((group for group in self.groups if group.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the rates worked out."""
        values = asdict(self)
        for entry, group in zip(values["groups"], self.groups, strict=True):
            entry["rate"], entry["character_rate"] = group.errors.rate, group.characters.rate
        for entry, language in zip(values["languages"], self.languages, strict=True):
            entry["accuracy"] = language.accuracy
        for name, score in (self.formatting or {}).items():
            values["formatting"][name] |= {
                "precision": score.precision,
                "recall": score.recall,
                "f1": score.f1,
            }
        return values


def utterance_errors(results: Results, name: NormalizerName = "simple") -> list[Errors]:
    """Errors of every utterance, in the unit of its language."""
    normal = normalizer(name)
    return [
        count_errors(normal(item.reference, item.lang), normal(item.text, item.lang), unit_of(item.lang))
        for item in results.utterances
    ]


def summarize(results: Results, name: NormalizerName = "simple") -> Summary:
    """Score an evaluation with a normaliser.

    Raises:
        BackendError: if jiwer, or the package of the normaliser, is not installed.
    """
    normal = normalizer(name)
    errors = utterance_errors(results, name)
    characters = [
        count_errors(normal(item.reference, item.lang), normal(item.text, item.lang), "character")
        for item in results.utterances
    ]
    languages = sorted({language_code(item.lang) for item in results.utterances})
    groups = []
    for language in languages:
        chosen = [i for i, item in enumerate(results.utterances) if language_code(item.lang) == language]
        groups.append(_group(language, unit_of(language), chosen, errors, characters))
    for unit, pool in POOLED.items():
        chosen = [i for i, item in enumerate(results.utterances) if unit_of(item.lang) == unit]
        if chosen:
            groups.append(_group(pool, unit, chosen, errors, characters))
    return Summary(
        name=results.name,
        about=_about(results),
        normalizer=name,
        groups=tuple(groups),
        timing=_timing(results.utterances),
        formatting=_formatting(results.utterances),
        languages=language_scores(results),
        confidence=confidence_score(results),
    )


def _about(results: Results) -> str:
    left, right = results.att_context_size
    prompt = "each its own" if results.language is None else results.language
    latency = (right + 1) * FRAME_MS
    return (
        f"Model {results.model} on {results.backend}, context [{left}, {right}] ({latency} ms), "
        f"language {prompt}, {results.manifest}."
    )


def _group(
    name: str, unit: Unit, chosen: Sequence[int], errors: Sequence[Errors], characters: Sequence[Errors]
) -> GroupScore:
    ours = [errors[index] for index in chosen]
    return GroupScore(
        name=name,
        unit=unit,
        utterances=len(chosen),
        errors=Errors.sum(ours),
        characters=Errors.sum([characters[index] for index in chosen]),
        utterances_wrong=sum(count.total > 0 for count in ours),
    )


def _timing(utterances: Sequence[Heard]) -> Timing:
    duration = sum(item.duration for item in utterances)
    first = [item.first_word for item in utterances if item.first_word is not None]
    return Timing(
        real_time_factor=sum(item.compute for item in utterances) / max(duration, 1e-9),
        first_word=_quantiles(first) if first else None,
        final=_quantiles([item.final for item in utterances]),
    )


def _quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    median, high = np.quantile(np.array(seconds), [0.5, 0.95])
    return float(median), float(high)


def _formatting(utterances: Sequence[Heard]) -> dict[str, Score] | None:
    """Scores over utterances whose references are written with case and marks."""
    written = [item for item in utterances if has_case_and_marks([item.reference])]
    if not written:
        return None
    total: dict[str, Score] = {}
    for item in written:
        for name, score in formatting_scores(item.reference, item.text).items():
            total[name] = total.get(name, Score()) + score
    return total
