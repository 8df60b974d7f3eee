"""Phrases on real speech with the embedded model: a beam hears them more often, and nothing else worse.

Greedy decoding takes a phrase's first piece or not at once and cannot take it back: it gains nothing in
general (the table in docs/decoding.md), so all that is asked of it is that it does no harm.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.boosting import measure, read_parts

import nemostream

UNSURE = 0.01  # points of WER that a difference elsewhere may be, where its interval holds zero


@pytest.mark.parametrize("beam", [1, 4])
def test_recall_rises_and_word_errors_do_not(shared_dir: Path, beam: int) -> None:
    """The words of two parts, favoured in turn."""
    parts = read_parts(shared_dir / "speech" / "eval")
    effects = measure(nemostream.load(threads=1), parts, ("orders", "kathleen"), beam)
    for item in effects:
        assert item.said > 40
        if beam > 1:
            missed = item.said - item.heard[0]
            assert item.heard[1] >= item.heard[0] + (missed > 0.1 * item.said)  # if there is much to gain
        for place in (item.here, item.elsewhere):
            assert place.low <= 0.0  # not worse than what chance does
        assert item.elsewhere.difference <= UNSURE
