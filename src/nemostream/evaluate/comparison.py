"""Two evaluations of the same utterances side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nemostream.evaluate.bootstrap import RESAMPLES, Interval, paired_bootstrap
from nemostream.evaluate.errors import Errors, Unit, count_errors, unit_of
from nemostream.evaluate.normalize import NormalizerName, language_code, normalizer
from nemostream.evaluate.results import Heard, Results, same_utterances
from nemostream.evaluate.summary import POOLED


@dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes:
        name: language code, or one of `POOLED`.
        unit: what the rates count.
        utterances: number of them.
        a: errors of A.
        b: errors of B.
        delta: rate of B minus rate of A, with its interval.
        identical: share of utterances with the same normalised transcript.
        divergence: errors of B if A's transcripts were the truth.
    """

    name: str
    unit: Unit
    utterances: int
    a: Errors
    b: Errors
    delta: Interval
    identical: float
    divergence: Errors


@dataclass(frozen=True)
class Comparison:
    """B against A.

    Attributes:
        a: name of A.
        b: name of B.
        normalizer: that was used.
        resamples: of the bootstrap; so is ``seed``.
        seed: of its generator.
        rows: languages in alphabetical order, then what is pooled.
    """

    a: str
    b: str
    normalizer: NormalizerName
    resamples: int
    seed: int
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the rates worked out."""
        values = asdict(self)
        for entry, row in zip(values["rows"], self.rows, strict=True):
            entry |= {
                "rate_a": row.a.rate,
                "rate_b": row.b.rate,
                "divergence_rate": row.divergence.rate,
                "significant": row.delta.significant,
            }
        return values


@dataclass(frozen=True)
class _Pair:
    lang: str
    a: Errors
    b: Errors
    divergence: Errors
    identical: bool


def compare(
    a: Results, b: Results, name: NormalizerName = "simple", *, resamples: int = RESAMPLES, seed: int = 0
) -> Comparison:
    """Compare B with A on the utterances that both are of.

    Raises:
        ManifestError: if they are not of the same utterances.
        BackendError: if jiwer, or the package of the normaliser, is not installed.
    """
    pairs = [_pair(ours, theirs, name) for ours, theirs in same_utterances(a, b)]
    rows = []
    for language in sorted({pair.lang for pair in pairs}):
        chosen = [pair for pair in pairs if pair.lang == language]
        rows.append(_row(language, unit_of(language), chosen, resamples, seed))
    for unit, pool in POOLED.items():
        chosen = [pair for pair in pairs if unit_of(pair.lang) == unit]
        if chosen:
            rows.append(_row(pool, unit, chosen, resamples, seed))
    return Comparison(a.name, b.name, name, resamples, seed, tuple(rows))


def _pair(a: Heard, b: Heard, name: NormalizerName) -> _Pair:
    normal, unit = normalizer(name), unit_of(a.lang)
    said, ours, theirs = (normal(text, a.lang) for text in (a.reference, a.text, b.text))
    return _Pair(
        language_code(a.lang),
        count_errors(said, ours, unit),
        count_errors(said, theirs, unit),
        count_errors(ours, theirs, unit),
        ours == theirs,
    )


def _row(name: str, unit: Unit, pairs: Sequence[_Pair], resamples: int, seed: int) -> Row:
    delta = paired_bootstrap(
        [pair.a.total for pair in pairs],
        [pair.b.total for pair in pairs],
        [pair.a.units for pair in pairs],
        [pair.lang for pair in pairs],
        resamples=resamples,
        seed=seed,
    )
    return Row(
        name=name,
        unit=unit,
        utterances=len(pairs),
        a=Errors.sum([pair.a for pair in pairs]),
        b=Errors.sum([pair.b for pair in pairs]),
        delta=delta,
        identical=sum(pair.identical for pair in pairs) / len(pairs),
        divergence=Errors.sum([pair.divergence for pair in pairs]),
    )
