"""The process that makes the calls: a plan as JSON on stdin, what happened as JSON on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemostream.load_test.call import CallRecord, Line, Listen, make_call
from nemostream.load_test.telephone import Utterance, read_utterances


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process does.

    Attributes:
        url: of the server, ``ws://host:port``.
        recordings: what is said.
        calls: at the same time.
        seconds: how long each call lasts at least; it ends with a whole utterance.
        pause: seconds of silence before each utterance.
        options: query parameters of each call, such as ``{"language": "de-DE"}``.
        api_key: if the server wants one.
        seed: of when in the first second each call begins.
    """

    url: str
    recordings: tuple[str, ...]
    calls: int
    seconds: float
    pause: float = 1.0
    options: tuple[tuple[str, str], ...] = ()
    api_key: str | None = None
    seed: int = 0


async def make_calls(plan: Plan, line: Callable[[], Line]) -> list[CallRecord]:
    """Make all calls of a plan at once and wait for the last."""
    utterances = read_utterances([Path(path) for path in plan.recordings])
    phases = np.random.default_rng(plan.seed).uniform(0, 1, plan.calls)
    start = time.monotonic() + 2.0  # time to connect
    return list(
        await asyncio.gather(
            *(
                make_call(line(), utterances, _order(utterances, call, plan), plan.pause, start + phase)
                for call, phase in enumerate(phases)
            )
        )
    )


def _order(utterances: Sequence[Utterance], call: int, plan: Plan) -> list[int]:
    """Neighbouring calls begin with different recordings, so that swapped results would be seen."""
    order: list[int] = []
    seconds = 0.0
    while seconds < plan.seconds or not order:
        order.append((call + len(order)) % len(utterances))
        seconds += plan.pause + utterances[order[-1]].seconds
    return order


def main(line_of: Callable[[Plan], Line] | None = None) -> None:
    """Read a plan, make its calls, write the records."""
    given: dict[str, Any] = json.load(sys.stdin)
    given["recordings"] = tuple(given["recordings"])
    given["options"] = tuple((key, value) for key, value in given["options"])
    plan = Plan(**given)
    make = line_of or (lambda plan: Listen(plan.url, dict(plan.options), plan.api_key))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        records = runner.run(make_calls(plan, lambda: make(plan)))
    json.dump([record.to_json() for record in records], sys.stdout)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, so that the generator takes less from the server; there is none on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
