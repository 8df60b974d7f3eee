"""How many calls hold? Levels of more and more calls, each compared with one call alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nemostream.errors import BackendError
from nemostream.load_test.generate import Plan
from nemostream.load_test.server import Usage
from nemostream.load_test.telephone import read_utterances

ALLOWED_SECONDS = 0.3
"""How much longer than one call alone the 95th percentile of the lag may be."""
FINENESS = 1.15  # the search ends when the next level that fails is at most this times the last that holds


@dataclass(frozen=True, slots=True)
class Level:
    """What happened with one number of calls; times in milliseconds.

    Attributes:
        calls: at the same time.
        utterances: in all.
        refused: calls that the server had no room for.
        broken: calls that ended early.
        lost: utterances whose final text never came.
        mismatches: utterances whose text differs from that in the run of one call.
        lag: median, 95th and 99th percentile of the time from the last packet to the final text.
        first_partial: the same of the time from the first packet to the first text.
        lateness: 99th percentile over utterances of how late the generator sent a packet.
        cores: busy cores of the server; None if it was not watched.
        megabytes: largest resident memory of the server.
        reasons: what the refused and broken calls were told, each once.
    """

    calls: int
    utterances: int
    refused: int
    broken: int
    lost: int
    mismatches: int
    lag: tuple[float, float, float]
    first_partial: tuple[float, float, float]
    lateness: float
    cores: float | None = None
    megabytes: float | None = None
    reasons: tuple[str, ...] = ()

    def holds(self, alone: Level) -> bool:
        """Nothing refused, lost or changed, and the lag within `ALLOWED_SECONDS` of one call's."""
        faults = self.refused + self.broken + self.lost + self.mismatches
        return faults == 0 and self.lag[1] <= alone.lag[1] + 1000 * ALLOWED_SECONDS

    def to_json(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)


class LoadTest:
    """Runs levels against one server and remembers what each recording's text is when it is alone."""

    def __init__(self, plan: Plan, *, pid: int | None = None, generator: Sequence[str] | None = None) -> None:
        """Prepare.

        Args:
            plan: of every level; its number of calls is replaced.
            pid: process id of the server, to watch it.
            generator: command line of the process that makes the calls; default: this package's.
        """
        self._plan, self._pid = plan, pid
        self._generator = generator or [sys.executable, "-m", "nemostream.load_test.generate"]
        recordings = read_utterances([Path(path) for path in plan.recordings])
        self._all_once = sum(plan.pause + recording.seconds for recording in recordings)
        self._texts: dict[int, str] = {}

    def alone(self) -> Level:
        """Run one call through every recording; its texts are what all later levels are held against."""
        total = len(self._plan.recordings)
        records, usage = self._run(
            replace(self._plan, calls=1, seconds=max(self._plan.seconds, self._all_once))
        )
        for item in records[0]["heard"]:
            self._texts.setdefault(item["utterance"], item["text"])
        level = self._level(1, records, usage)
        if level.lost or level.refused or level.broken or len(self._texts) < total:
            reason = "; ".join(level.reasons) or "a final text never came"
            raise BackendError(f"One call alone did not get through: {reason}.")
        return level

    def level(self, calls: int) -> Level:
        """Run ``calls`` calls at once."""
        records, usage = self._run(replace(self._plan, calls=calls))
        return self._level(calls, records, usage)

    def _run(self, plan: Plan) -> tuple[list[dict[str, Any]], Usage | None]:
        usage = Usage(self._pid) if self._pid is not None else None
        with usage or nullcontext():
            done = subprocess.run(  # noqa: S603 - our own command line
                self._generator, input=json.dumps(asdict(plan)), capture_output=True, text=True, check=False
            )
        if done.returncode:
            raise BackendError(f"The load generator failed: {done.stderr.strip().splitlines()[-1]}")
        return json.loads(done.stdout), usage

    def _level(self, calls: int, records: list[dict[str, Any]], usage: Usage | None) -> Level:
        accepted = [record for record in records if record["refused"] is None]
        heard = [item for record in accepted for item in record["heard"]]
        complete = [item for item in heard if item["lag"] is not None]
        reasons = {record["refused"] or record["broken"] for record in records}
        return Level(
            calls=calls,
            utterances=len(heard),
            refused=len(records) - len(accepted),
            broken=sum(record["broken"] is not None for record in accepted),
            lost=len(heard) - len(complete),
            mismatches=sum(item["text"] != self._texts[item["utterance"]] for item in complete),
            lag=_percentiles([item["lag"] for item in complete]),
            first_partial=_percentiles(
                [item["first_partial"] for item in heard if item["first_partial"] is not None]
            ),
            lateness=_percentiles([item["lateness"] for item in heard])[2],
            cores=usage.cores if usage else None,
            megabytes=usage.megabytes if usage else None,
            reasons=tuple(sorted(reason for reason in reasons if reason)),
        )


def find_largest(
    test: LoadTest, most: int, report: Callable[[Level], None], first: int = 2
) -> tuple[list[Level], int]:
    """Double the calls until a level fails, then halve the interval.

    Args:
        test: against a server that runs.
        most: never more calls than this.
        report: told of each level when it is done.
        first: calls of the first level after one call alone.

    Returns:
        all levels by number of calls, and the largest number that held.
    """
    alone = test.alone()
    report(alone)
    levels = [alone]
    good, bad = 1, most + 1
    calls = min(first, most)
    while good < calls < bad:
        level = test.level(calls)
        report(level)
        levels.append(level)
        if level.holds(alone):
            good = calls
        else:
            bad = calls
        if bad <= most:  # a failure is known
            calls = (good + bad) // 2 if bad > good * FINENESS else good
        else:
            calls = min(2 * calls, most)
    return sorted(levels, key=lambda level: level.calls), good


def _percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th and 99th percentile in milliseconds; NaN without values."""
    if not seconds:
        return (float("nan"),) * 3
    low, high, most = np.percentile(np.array(seconds) * 1000, [50, 95, 99])
    return float(low), float(high), float(most)
