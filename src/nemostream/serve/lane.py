"""`Lane`: one thread that owns a model and steps the chunks of its calls together.

The event loop only appends bytes to a call's queue. The thread wakes when a call has a whole chunk, waits a
moment for others as long as nobody is late, and takes one chunk of each, the oldest first, in one step.
While it computes, more chunks arrive, so that batches grow with the load by themselves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from nemostream.engine.model import Model
from nemostream.engine.session import Session, step_sessions
from nemostream.errors import NemostreamError
from nemostream.serve.call import Call, News
from nemostream.serve.metrics import Metrics

log = logging.getLogger("nemostream.serve")

_MOST_PATIENCE = 1.0  # seconds that a chunk may wait while final texts of others are made

Deliver = Callable[[list[tuple[Call, News]]], None]


class Lane:
    """Runs calls, whoever admitted them.

    Args:
        model: used by this lane's thread alone.
        deliver: given what calls brought, after every step, from that thread.
        max_batch: calls in one step.
        gather: seconds that a chunk may wait for others to share its step.
        metrics: where to count.
    """

    def __init__(
        self, model: Model, deliver: Deliver, *, max_batch: int, gather: float, metrics: Metrics
    ) -> None:
        self.model = model
        self._deliver, self._max_batch, self._gather, self._metrics = deliver, max_batch, gather, metrics
        self._calls: set[Call] = set()
        self._wake = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step that it is in."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()

    @property
    def active(self) -> int:
        """Calls that it runs."""
        return len(self._calls)

    @property
    def alive(self) -> bool:
        """False if the thread has died."""
        return self._thread.is_alive()

    @property
    def behind(self) -> float:
        """Seconds since the audio of the chunk was there that is furthest behind its call."""
        now = time.monotonic()
        with self._wake:
            return max((now - call.behind_since for call in self._calls if call.is_due), default=0.0)

    def add(self, calls: Iterable[Call]) -> None:
        """Run these calls too, until they are over."""
        with self._wake:
            self._calls.update(calls)

    def notify(self) -> None:
        """One of the calls has something to do."""
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
        """Wait for work and return the calls that have some, the longest waiting first; None to stop.

        Final texts that clients wait for come first, in small steps of their own, unless another call has
        waited for long.
        """
        while not self._stopped:
            now = time.monotonic()
            due = sorted(
                (call.due_since, number, call) for number, call in enumerate(self._calls) if call.is_due
            )
            if not due:
                self._wake.wait()
                continue
            waited = now - due[0][0]
            calls = [call for _, _, call in due]
            awaited = [call for call in calls if call.is_awaited]
            if awaited and waited < _MOST_PATIENCE:
                return awaited[: self._max_batch]
            if waited >= self._gather or len(due) >= min(self._max_batch, len(self._calls)):
                return calls[: self._max_batch]
            self._wake.wait(self._gather - waited)
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
