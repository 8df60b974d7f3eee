"""How calls are spread over lanes, and in which order a lane steps them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

import nemostream
from nemostream.serve import lane as lanes
from nemostream.serve.call import Call, CallOptions, News
from nemostream.serve.lane import Lane
from nemostream.serve.metrics import Metrics
from nemostream.serve.scheduler import Refused, Scheduler, measure_slots
from tests.serve.conftest import running, s16le
from tests.serve.test_listen import finals, listen, results

CHUNK = 0.32  # seconds


class OneLane:
    """A lane whose thread does not run, so that a test says when it steps."""

    def __init__(self, calls: int) -> None:
        self.news: list[tuple[Call, News]] = []
        model = nemostream.load(threads=1)
        self.lane = Lane(model, self.news.extend, max_batch=64, gather=0.0, metrics=Metrics())
        options = CallOptions(latency=round(CHUNK * 1000))
        self.calls = [Call(options, 0, self.lane.notify) for _ in range(calls)]
        self.lane.add(self.calls)

    def step(self) -> list[int]:
        """Let the lane step what it wants, and return which calls these were."""
        batch = self.lane._next_batch()
        assert batch is not None
        self.lane._step(batch)
        return sorted(self.calls.index(call) for call in batch)


def one_lane(calls: int, scenario: Callable[[OneLane], None]) -> None:
    """Run a scenario where calls can be made: in an event loop."""

    async def run() -> None:
        scenario(OneLane(calls))

    asyncio.run(run())


def test_a_final_text_that_is_waited_for_comes_before_the_chunks_of_others(clip) -> None:
    audio = s16le(clip)[: round(1.5 * CHUNK * 32_000)]

    def scenario(one: OneLane) -> None:
        for call in one.calls:
            call.feed(audio)
        assert one.step() == [0, 1, 2]
        for call in one.calls:
            call.feed(audio)
        one.calls[2].mark("please")
        while not any(news.result and news.result.mark == "please" for _, news in one.news):
            assert one.step() == [2]
        assert one.step() == [0, 1]

    one_lane(3, scenario)


def test_nobody_waits_for_long_because_of_the_final_texts_of_others(clip, monkeypatch) -> None:
    monkeypatch.setattr(lanes, "_MOST_PATIENCE", 0.05)
    audio = s16le(clip)[: round(1.5 * CHUNK * 32_000)]

    def scenario(one: OneLane) -> None:
        for call in one.calls:
            call.feed(audio)
        assert one.step() == [0, 1]
        one.calls[0].feed(audio)
        time.sleep(0.1)
        one.calls[1].feed(audio)
        one.calls[1].mark("please")
        assert one.step() == [0, 1]

    one_lane(2, scenario)


def test_a_file_is_not_waited_for_before_its_end(clip) -> None:
    def scenario(one: OneLane) -> None:
        one.calls[0].feed(s16le(clip))
        one.calls[0].end()
        one.calls[1].feed(s16le(clip)[: round(1.5 * CHUNK * 32_000)])
        assert one.step() == [0, 1]
        while not one.calls[0].over:
            assert one.step() == [0]

    one_lane(2, scenario)


def test_calls_go_where_the_fewest_are(clip, expect) -> None:
    audio = s16le(clip)
    with running(workers=3, slots=9) as server, ExitStack() as stack:
        scheduler = server.state.scheduler

        def counts() -> list[int]:
            return [lane.active for lane in scheduler.lanes]

        sockets = [stack.enter_context(listen(server)) for _ in range(6)]
        deadline = time.monotonic() + 10
        while scheduler.active < 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert counts() == [2, 2, 2]
        for socket in sockets:
            socket.send(audio)
            socket.send('{"type": "CloseStream"}')
        assert {finals(results(socket)) for socket in sockets} == {expect(audio, encoding="s16le")}
        server.wait_until_idle()
        assert counts() == [0, 0, 0]


def test_a_lane_that_is_late_gets_no_more_calls(monkeypatch) -> None:
    async def run() -> None:
        model = nemostream.load(threads=1)
        settings = {"slots": 9, "max_batch": 64, "gather": 0.0, "metrics": Metrics()}
        models = [model, model.sibling()]
        scheduler = Scheduler(models, lambda news: None, **settings)  # its threads do not run
        first, second = scheduler.lanes
        (call,) = scheduler.admit(CallOptions())
        assert (first.active, second.active) == (1, 0)
        call.feed(bytes(64_000))
        monkeypatch.setattr("nemostream.serve.scheduler.LATE_SECONDS", 0.05)
        await asyncio.sleep(0.1)
        scheduler.admit(CallOptions(), 2)
        assert (first.active, second.active) == (1, 2)
        for call in second._calls:
            call.feed(bytes(64_000))
        await asyncio.sleep(0.1)
        with pytest.raises(Refused, match="behind"):
            scheduler.admit(CallOptions())

    asyncio.run(run())


def test_slots_are_measured_with_all_lanes_at_work() -> None:
    model = nemostream.load(threads=1)
    models = [model, model.sibling()]
    assert measure_slots(models, 320, 1) == 1
    assert measure_slots(models, 320, 6) == 6
    assert measure_slots(models, 320, 64, share=0.0) == 1
