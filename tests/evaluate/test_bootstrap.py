"""The interval holds the true difference as often as it says."""

from __future__ import annotations

import numpy as np
import pytest

from nemostream.evaluate.bootstrap import Interval, paired_bootstrap

STRATA = ("de", "en", "fr")


def simulate(
    generator: np.random.Generator, utterances: int
) -> tuple[list[int], list[int], list[int], list[str]]:
    """Utterances of varying difficulty that A and B share; B has 3 points more errors in every language."""
    strata = [STRATA[index % 3] for index in range(utterances)]
    units = generator.integers(5, 30, utterances)
    base = np.array([{"de": 0.10, "en": 0.15, "fr": 0.25}[name] for name in strata])
    hard = base * generator.gamma(2.0, 0.5, utterances)
    shared = generator.binomial(units, np.minimum(hard, 1) / 2)
    a = shared + generator.binomial(units, np.minimum(hard, 1) / 2)
    b = shared + generator.binomial(units, np.minimum(hard, 1) / 2) + generator.binomial(units, 0.03)
    return a.tolist(), b.tolist(), units.tolist(), strata


def test_coverage_is_nominal() -> None:
    """Of 500 intervals of 95 %, 475 hold the truth on average, with a standard deviation of 4.9."""
    generator = np.random.default_rng(1)
    covered = narrow = 0
    for seed in range(500):
        interval = paired_bootstrap(*simulate(generator, 150), resamples=500, seed=seed)
        covered += interval.low <= 0.03 <= interval.high
        narrow += interval.low > 0
    assert 455 <= covered <= 492
    assert narrow > 250  # the intervals are of use: they see a difference of 3 points


def test_pairing_narrows_the_interval() -> None:
    a, b, units, strata = simulate(np.random.default_rng(2), 300)
    paired = paired_bootstrap(a, b, units, strata)
    order = np.random.default_rng(3).permutation(300)
    order = np.concatenate([order[[strata[i] == name for i in order]] for name in STRATA])
    place = np.concatenate([[i for i, s in enumerate(strata) if s == name] for name in STRATA])
    shuffled = np.empty(300, int)
    shuffled[place] = np.array(b)[order]
    unpaired = paired_bootstrap(a, shuffled.tolist(), units, strata)
    assert width(unpaired) > 1.2 * width(paired)


def test_strata_keep_their_size() -> None:
    """Where every language has a constant difference, resampling inside them leaves no doubt."""
    strata = ["de"] * 10 + ["en"] * 20
    interval = paired_bootstrap([0] * 30, [1] * 10 + [0] * 20, [10] * 30, strata)
    assert (interval.low, interval.high) == (pytest.approx(10 / 300), pytest.approx(10 / 300))


def test_seeded_and_equal_systems() -> None:
    data = simulate(np.random.default_rng(4), 60)
    assert paired_bootstrap(*data, seed=5) == paired_bootstrap(*data, seed=5)
    assert paired_bootstrap(*data, seed=5) != paired_bootstrap(*data, seed=6)
    assert paired_bootstrap(data[0], data[0], *data[2:]) == Interval(0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="one length"):
        paired_bootstrap([1], [1, 2], [1], ["en"])


def width(interval: Interval) -> float:
    return interval.high - interval.low
