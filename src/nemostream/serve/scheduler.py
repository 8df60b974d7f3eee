"""`Scheduler`: one thread owns the model and steps the chunks of many calls together.

The event loop only appends bytes to a call's queue. The thread wakes when a call has a whole chunk, waits a
moment for others as long as nobody is late, and takes one chunk of each, the oldest first, in one step.
While it computes, more chunks arrive, so that batches grow with the load by themselves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from nemostream.audio import check_rate
from nemostream.decoding.boosting import PhraseTree
from nemostream.engine.model import Model
from nemostream.engine.session import Session, step_sessions
from nemostream.errors import NemostreamError
from nemostream.serve.call import Call, CallOptions, News
from nemostream.serve.metrics import Metrics

log = logging.getLogger("nemostream.serve")

Deliver = Callable[[list[tuple[Call, News]]], None]
LATE_SECONDS = 2.0  # behind by so much, new calls are refused, whatever slots are free


class Refused(NemostreamError):  # noqa: N818 - an answer, not a fault
    """A call that the server has no room for; the message is what the client is told."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Scheduler:
    """Admits calls and runs them.

    Args:
        model: used by the scheduler's thread alone.
        deliver: given what calls brought, after every step, from that thread.
        slots: calls at the same time.
        max_batch: calls in one step.
        gather: seconds that a chunk may wait for others to share its step.
        metrics: where to count.
    """

    def __init__(
        self, model: Model, deliver: Deliver, *, slots: int, max_batch: int, gather: float, metrics: Metrics
    ) -> None:
        self.model, self.slots = model, slots
        self._deliver, self._max_batch, self._gather, self._metrics = deliver, max_batch, gather, metrics
        self._calls: set[Call] = set()
        metrics.streams.set_function(lambda: self.active)
        self._wake = threading.Condition()
        self._draining = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Start the model's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step that it is in."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()

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
        return len(self._calls)

    @property
    def alive(self) -> bool:
        """False if the model's thread has died."""
        return self._thread.is_alive()

    def admit(self, options: CallOptions, count: int = 1) -> list[Call]:
        """Begin ``count`` calls, one a channel, all or none.

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
        calls = [Call(options, channel, self._notify) for channel in range(count)]
        with self._wake:
            self._calls.update(calls)
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
        if self._behind() > LATE_SECONDS:
            self._refuse("late", "This server is behind with the calls that it has; try again later.")

    def release(self, call: Call) -> None:
        """End a call whatever state it is in; its slot is free after the current step."""
        call.cancel()
        self._notify()

    def _behind(self) -> float:
        """Seconds since the audio of the chunk was there that is furthest behind its call."""
        now = time.monotonic()
        with self._wake:
            return max((now - call.behind_since for call in self._calls if call.is_due), default=0.0)

    def _refuse(self, reason: str, message: str) -> None:
        self._metrics.refused.labels(reason).inc()
        raise Refused(reason, message)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                batch = self._next_batch()
                if batch is None:
                    return
            try:
                self._step(batch)
            except Exception as error:  # a fault of the runtime or of ours: these calls end, the others go on
                log.exception("step failed")
                for call in batch:
                    call.cancel()
                self._deliver(
                    [(call, News(error=f"The model failed: {error}", ended=True)) for call in batch]
                )

    def _next_batch(self) -> list[Call] | None:
        """Wait for work and return the calls that have some, the longest waiting first; None to stop."""
        while not self._stopped:
            now = time.monotonic()
            due = sorted(
                (call.due_since, number, call) for number, call in enumerate(self._calls) if call.is_due
            )
            if not due:
                self._wake.wait()
                continue
            patience = self._gather - (now - due[0][0])
            if patience <= 0 or len(due) >= min(self._max_batch, len(self._calls)):
                return [call for _, _, call in due[: self._max_batch]]
            self._wake.wait(patience)
        return None

    def _step(self, calls: list[Call]) -> None:
        begin = time.monotonic()
        news: list[tuple[Call, News]] = []
        stepped: list[tuple[Call, Session]] = []
        for call in calls:
            self._metrics.queue_seconds.observe(max(0.0, begin - call.behind_since))
            try:
                news += [(call, item) for item in call.advance(self.model)]
            except Exception as error:  # of its audio, whoever's fault; it may not harm the others
                call.cancel()
                message = str(error)
                if not isinstance(error, NemostreamError):
                    log.exception("a call failed")
                    message = f"The call failed: {error}"
                news.append((call, News(error=message, ended=True)))
            if call.session is not None and call.session_is_due and not call.cancelled:
                stepped.append((call, call.session))
        prepared = time.monotonic()
        engine = self.model.engine
        encoding, decoding = engine.encode_seconds, engine.decode_seconds
        # calls of a file may take several chunks, but only together with others of their kind
        for chunks in sorted({call.options.chunks for call, _ in stepped}):
            group = [(call, session) for call, session in stepped if call.options.chunks == chunks]
            events = step_sessions([session for _, session in group], chunks)
            for (call, _), new in zip(group, events, strict=True):
                news += [(call, item) for item in call.hear(new)]
            self._metrics.batch_size.observe(len(group))
        for call in calls:
            call.settle()
        over = [call for call in calls if call.over]
        if over:
            with self._wake:
                self._calls.difference_update(over)
        self._metrics.encode_seconds.inc(engine.encode_seconds - encoding)
        self._metrics.decode_seconds.inc(engine.decode_seconds - decoding)
        done = time.monotonic()
        self._metrics.feature_seconds.inc(prepared - begin)
        self._metrics.step_seconds.observe(done - prepared)
        for call in calls:
            self._metrics.lag_seconds.observe(max(0.0, done - call.stepped_since))
        if news:
            self._deliver(news)


def measure_slots(model: Model, latency: int | None, most: int, share: float = 0.6) -> int:
    """Return how many calls fit: the largest tried batch whose step takes ``share`` of a chunk's time.

    Args:
        model: no call runs on it yet.
        latency: of the calls, in milliseconds; None is the model's default.
        most: the answer is at most this.
        share: the rest is for features, sockets and bursts.
    """
    import numpy as np

    size, best = 1, 1
    audio = np.random.default_rng(0).normal(0, 0.05, 16_000).astype(np.float32)
    while size <= most:
        sessions: list[Any] = [model.stream(latency=latency) for _ in range(size)]
        try:
            chunk = sessions[0].chunk_seconds
            times = []
            for _ in range(4):  # the first steps also make the runtime's buffers
                for session in sessions:
                    while not session.ready:
                        session.push(audio[: round(chunk * 16_000)])
                begin = time.perf_counter()
                step_sessions(sessions)
                times.append(time.perf_counter() - begin)
        finally:
            for session in sessions:
                session.close()
        if min(times[1:]) > share * chunk:
            break
        best = size
        size = size * 2 if size < 8 else round(size * 1.5)
    return min(best, most)
