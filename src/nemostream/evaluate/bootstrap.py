"""Paired bootstrap, stratified by language: how sure is a difference of error rates?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
_BLOCK = 1 << 22  # indices drawn at once: bounds the memory


@dataclass(frozen=True)
class Interval:
    """A difference of two rates, B minus A, and the confidence interval of it."""

    difference: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """True if the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    errors_a: Sequence[int],
    errors_b: Sequence[int],
    units: Sequence[int],
    strata: Sequence[str],
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the pooled rate of B minus that of A.

    Utterances are drawn with replacement inside every stratum, the same for A and B, so that neither the mix
    of languages nor the difficulty of utterances blurs the difference.

    Args:
        errors_a: edits of A in every utterance; ``errors_b`` those of B.
        errors_b: see above.
        units: words (or characters) that were said in every utterance.
        strata: language of every utterance.
        resamples: how often to draw.
        level: of confidence.
        seed: of the generator.

    Raises:
        ValueError: if there are no utterances or no units, or the lengths differ.
    """
    deltas = np.array(errors_b, np.float64) - np.array(errors_a, np.float64)
    sizes, groups = np.array(units, np.float64), np.array(strata)
    if not (len(deltas) == len(sizes) == len(groups)) or sizes.sum() <= 0:
        raise ValueError("utterances, units and strata of one length, with a unit at least, were expected")
    generator = np.random.default_rng(seed)
    top, bottom = np.zeros(resamples), np.zeros(resamples)
    for stratum in np.unique(groups):
        members = np.flatnonzero(groups == stratum)
        step = max(1, _BLOCK // len(members))
        for start in range(0, resamples, step):
            count = min(step, resamples - start)
            drawn = members[generator.integers(0, len(members), (count, len(members)))]
            top[start : start + count] += deltas[drawn].sum(axis=1)
            bottom[start : start + count] += sizes[drawn].sum(axis=1)
    rates: NDArray[np.float64] = top / np.maximum(bottom, 1.0)
    tail = (1 - level) / 2
    low, high = np.quantile(rates, [tail, 1 - tail])
    return Interval(float(deltas.sum() / sizes.sum()), float(low), float(high))
