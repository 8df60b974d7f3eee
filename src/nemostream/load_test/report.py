"""The results of a load test as a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemostream.checkpoints.files import optional_module
from nemostream.load_test.search import ALLOWED_SECONDS, Level

HEADER = (
    "calls",
    "lag p50",
    "p95",
    "p99 ms",
    "first text p50",
    "p95 ms",
    "refused",
    "broken",
    "lost",
    "mismatches",
    "of utterances",
    "cores",
    "MB",
    "sent late ms",
    "holds",
)


def row_of(level: Level, alone: Level) -> tuple[str, ...]:
    """One level as cells under `HEADER`."""
    return (
        str(level.calls),
        *(f"{value:.0f}" for value in level.lag),
        *(f"{value:.0f}" for value in level.first_partial[:2]),
        *(str(count) for count in (level.refused, level.broken, level.lost, level.mismatches)),
        str(level.utterances),
        "" if level.cores is None else f"{level.cores:.2f}",
        "" if level.megabytes is None else f"{level.megabytes:.0f}",
        f"{level.lateness:.0f}",
        "yes" if level.holds(alone) else "no",
    )


def to_markdown(levels: Sequence[Level]) -> str:
    """All levels as a table; the first is one call alone."""
    lines = [HEADER, tuple("---:" for _ in HEADER), *(row_of(level, levels[0]) for level in levels)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def plot(series: dict[str, Sequence[Level]], path: Path) -> None:
    """Draw the 95th percentile of the lag over the number of calls, one line per system.

    Args:
        series: levels by the system's name; the first level of each is one call alone.
        path: of the picture; its ending says the format.

    Raises:
        BackendError: if matplotlib is not installed.
    """
    figure_module = optional_module("matplotlib.figure", "eval", "A plot")
    figure = figure_module.Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    for name, levels in series.items():
        calls = [level.calls for level in levels]
        (line,) = axes.plot(calls, [level.lag[1] for level in levels], marker="o", label=f"{name}, p95")
        axes.plot(calls, [level.lag[0] for level in levels], color=line.get_color(), alpha=0.4, linestyle=":")
        axes.axhline(
            levels[0].lag[1] + 1000 * ALLOWED_SECONDS, color=line.get_color(), linestyle="--", lw=0.8
        )
    axes.set(xlabel="calls at once", ylabel="last packet to final text, ms", xscale="log", yscale="log")
    axes.legend()
    figure.savefig(path)
