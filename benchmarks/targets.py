"""What was wished for, what was measured, and whether that is enough; computed from the results alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

OURS, PEER, REFERENCE = "nemostream int8", "sherpa-onnx int8", "transformers fp32"
FLAT_MB = 10.0  # growth of memory over an hour that is noise of an allocator

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Target:
    """One line of the table.

    Attributes:
        wish: what was wished for.
        found: the number that was measured; None if it was not.
        unit: behind it.
        limit: what it is compared with.
        most: the limit is the most that is good; else the least.
    """

    wish: str
    found: float | None
    unit: str
    limit: float
    most: bool = False

    @property
    def verdict(self) -> str:
        """Reached, missed, or not measured."""
        if self.found is None:
            return "not measured"
        good = self.found <= self.limit if self.most else self.found >= self.limit
        return "reached" if good else "missed"


def targets(rows: Rows) -> Iterator[Target]:
    """Every target, from rows of the results file."""

    def value(figure: str, system: str, setting: str, unit: str) -> float | None:
        """The first row's value whose system and setting begin so."""
        for row in rows:
            same = row["figure"] == figure and row["unit"] == unit and row["system"].startswith(system)
            if same and row["setting"].startswith(setting):
                return float(row["value"])
        return None

    def best(system: str) -> float | None:
        found = [
            row["value"]
            for row in rows
            if (row["figure"], row["system"]) == ("streams", system) and row["setting"].startswith("320 ms")
        ]
        return max(found, default=None)

    one = "320 ms, 1 thread"
    ours = value("live", OURS, one, "RTF")
    yield Target("one stream at 320 ms, int8, one thread: RTF at most 0.13", ours, "", 0.13, most=True)
    limit = value("live", OURS, one, "% of limit")
    yield Target("the same: at least 60 % of the matrix products' limit", limit, " %", 60)
    peer, reference = (value("live", name, one, "RTF") for name in (PEER, REFERENCE))
    yield Target("at least 1.7 times as fast as sherpa-onnx int8", _ratio(peer, ours), " times", 1.7)
    yield Target("at least 10 times as fast as transformers fp32", _ratio(reference, ours), " times", 10)
    speed, peer = (value("file", name, "", "x real time") for name in (OURS, PEER))
    yield Target("files: at least 3 times sherpa-onnx streaming", _ratio(speed, peer), " times", 3)
    yield Target("files: at least 60 % of the limit", value("file", OURS, "", "% of limit"), " %", 60)
    yield Target("live streams at 320 ms on two cores: at least 48", best(OURS), "", 48)
    ratio = _ratio(best(OURS), best(PEER))
    yield Target("the same: at least 3 times those of sherpa-onnx", ratio, " times", 3)
    yield Target(
        "memory of one stream: at most 1.0 GB", value("memory", OURS, "1 stream", "MB"), " MB", 1000, True
    )
    more = value("memory", OURS, "each further stream", "MB")
    yield Target("memory of each further stream: at most 13 MB", more, " MB", 13, most=True)
    growth = value("memory", OURS, "growth over 11250 steps", "MB")
    yield Target(f"flat over an hour (at most {FLAT_MB:g} MB more)", growth, " MB", FLAT_MB, most=True)
    p99 = value("memory", OURS, "p99 / median of 11250 steps", "ratio")
    yield Target(
        "99th percentile of that hour's steps at most 1.5 times the median", p99, " times", 1.5, most=True
    )


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None
