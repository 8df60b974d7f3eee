"""Phrases on real speech with the embedded model: heard more often, and nothing else heard worse."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.boosting import measure, read_parts

import nemostream

UNSURE = 0.01  # points of WER that a difference elsewhere may be, where its interval holds zero


@pytest.mark.parametrize("beam", [1, pytest.param(4, marks=pytest.mark.long)])
def test_recall_rises_and_word_errors_do_not(shared_dir: Path, beam: int) -> None:
    """The two parts' words together, since in one of them greedy decoding may hear none in either case."""
    parts = read_parts(shared_dir / "speech" / "eval")
    effects = measure(nemostream.load(threads=1), parts, ("orders", "kathleen"), beam)
    before, after = (sum(item.heard[run] for item in effects) for run in (0, 1))
    assert after > before
    for item in effects:
        assert item.said > 40
        assert item.heard[1] >= item.heard[0]
        for place in (item.here, item.elsewhere):
            assert place.low <= 0.0  # not worse than what chance does
        assert item.elsewhere.difference <= UNSURE
