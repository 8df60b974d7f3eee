"""`Scheduler`: admits calls and spreads them over lanes, each a thread with a model of its own.

On a CPU there is a lane for every core, on the same weights: two cores that step the calls of one batch
together wait for each other, and every call for the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nemostream.audio import check_rate
from nemostream.config import FRAME_MS
from nemostream.decoding.boosting import PhraseTree
from nemostream.engine.model import Model
from nemostream.engine.session import step_sessions
from nemostream.errors import NemostreamError
from nemostream.serve.call import Call, CallOptions
from nemostream.serve.lane import Deliver, Lane
from nemostream.serve.metrics import Metrics

_TELEPHONE_RATE = 8000
LATE_SECONDS = 2.0  # behind by so much, new calls are refused, whatever slots are free


class Refused(NemostreamError):  # noqa: N818 - an answer, not a fault
    """A call that the server has no room for; the message is what the client is told."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Scheduler:
    """Admits calls to its lanes.

    Args:
        models: one for each lane, as `nemostream.engine.model.Model.sibling` makes them.
        deliver: given what calls brought, after every step, from the lanes' threads.
        slots: calls at the same time.
        max_batch: calls in one step.
        gather: seconds that a chunk may wait for others to share its step.
        metrics: where to count.

    Attributes:
        lanes: one for each model.
        model: the first of them, for what does not run it.
    """

    def __init__(
        self,
        models: Sequence[Model],
        deliver: Deliver,
        *,
        slots: int,
        max_batch: int,
        gather: float,
        metrics: Metrics,
    ) -> None:
        self.model, self.slots = models[0], slots
        self.lanes = [
            Lane(model, deliver, max_batch=max_batch, gather=gather, metrics=metrics) for model in models
        ]
        self._metrics = metrics
        metrics.streams.set_function(lambda: self.active)
        self._draining = False

    def start(self) -> None:
        """Start the lanes."""
        for lane in self.lanes:
            lane.start()

    def stop(self) -> None:
        """End every lane after the step that it is in."""
        for lane in self.lanes:
            lane.stop()

    def drain(self) -> None:
        """Refuse new calls from now on; those that run go on."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """New calls are refused since the server is shutting down."""
        return self._draining

    @property
    def active(self) -> int:
        """Calls that hold a slot."""
        return sum(lane.active for lane in self.lanes)

    @property
    def alive(self) -> bool:
        """False if the thread of a lane has died."""
        return all(lane.alive for lane in self.lanes)

    def admit(self, options: CallOptions, count: int = 1) -> list[Call]:
        """Begin ``count`` calls, one a channel, all or none, in lanes that keep to the time.

        Raises:
            Refused: if there is no room.
            NemostreamError: on options that the model can't run with.
        """
        self.model.config.prompt_id(options.language)
        self.model.att_context(options.latency)
        check_rate(options.sample_rate, "sample_rate")
        if options.boost:
            PhraseTree(self.model.tokenizer, options.boost)
        self.check_room(count)
        calls, lanes = [], self._lanes_in_time() or self.lanes
        for channel in range(count):
            lane = min(lanes, key=lambda lane: lane.active)
            call = Call(options, channel, lane.notify)
            lane.add([call])
            calls.append(call)
        return calls

    def check_room(self, count: int = 1) -> None:
        """Whether ``count`` calls could begin now.

        Raises:
            Refused: if there is no room.
        """
        if self._draining:
            self._refuse("draining", "This server is shutting down; connect again, to another one.")
        if self.active + count > self.slots:
            self._refuse("full", f"All {self.slots} slots of this server are taken; try again later.")
        if not self._lanes_in_time():
            self._refuse("late", "This server is behind with the calls that it has; try again later.")

    def _lanes_in_time(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.behind <= LATE_SECONDS]

    def _refuse(self, reason: str, message: str) -> None:
        self._metrics.refused.labels(reason).inc()
        raise Refused(reason, message)


def measure_slots(models: Sequence[Model], latency: int | None, most: int, share: float = 0.6) -> int:
    """Return how many calls fit: the most, of those tried, that take ``share`` of a chunk's time.

    Args:
        models: one for each lane, which all step at the same time; no call runs on them yet.
        latency: of the calls, in milliseconds; None is the model's default.
        most: the answer is at most this.
        share: the rest is for sockets and bursts.
    """
    size, best = 1, 1
    chunk = models[0].engine.chunk_frames(models[0].att_context(latency)) * FRAME_MS / 1000
    with ThreadPoolExecutor(len(models)) as pool:
        while best < most or size == 1:  # one round in any case, which warms up
            seconds = pool.map(lambda model, size=size: _step_seconds(model, latency, size), models)
            if max(seconds) > share * chunk:
                break
            best = size * len(models)
            size = size * 2 if size < 8 else round(size * 1.5)
    return min(best, most)


def _step_seconds(model: Model, latency: int | None, size: int) -> float:
    """Seconds that the features and the step of ``size`` telephone calls take."""
    audio = np.random.default_rng(0).integers(0, 256, _TELEPHONE_RATE, np.uint8).tobytes()
    sessions = [
        model.stream(latency=latency, sample_rate=_TELEPHONE_RATE, encoding="mulaw") for _ in range(size)
    ]
    times = []
    try:
        for _ in range(4):  # the first steps also make the runtime's buffers
            begin = time.perf_counter()
            for session in sessions:
                while not session.ready:
                    session.push(audio[: round(session.chunk_seconds * _TELEPHONE_RATE)])
            step_sessions(sessions)
            times.append(time.perf_counter() - begin)
    finally:
        for session in sessions:
            session.close()
    return min(times[1:])
