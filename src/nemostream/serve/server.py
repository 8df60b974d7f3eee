"""`Server`: what the protocols share: the model, its scheduler, and the conversations that go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import nemostream
from nemostream.audio.quiet import QuietByVoice
from nemostream.engine.model import Model
from nemostream.loading import is_onnx
from nemostream.runtimes.onnx import physical_cores
from nemostream.serve.access import Access
from nemostream.serve.call import Call, CallOptions, News
from nemostream.serve.config import ServeConfig
from nemostream.serve.metrics import Metrics
from nemostream.serve.scheduler import Scheduler, measure_slots

log = logging.getLogger("nemostream.serve")

LATENCIES = (80, 160, 320, 560, 1120)
Listener = Callable[[Call, News], None]


class Server:
    """State of one server process. `start` and `stop` belong to the application's lifespan."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.metrics = Metrics()
        self.access = Access(config, self.metrics)
        self.conversations: dict[str, object] = {}  # by their id, so that they can be taken up again
        self.followers: dict[str, list[asyncio.Queue[dict[str, Any] | None]]] = {}  # of Twilio's streams
        self._listeners: dict[Call, Listener] = {}
        self._scheduler: Scheduler | None = None
        self.started = int(time.time())
        self.failure: Exception | None = None  # why it could not start

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler; there is one between `start` and `stop`."""
        assert self._scheduler is not None
        return self._scheduler

    @property
    def model(self) -> Model:
        """The model, for what does not run it."""
        return self.scheduler.model

    @property
    def ready(self) -> bool:
        """It has warmed up, its threads live, and it does not drain."""
        return self._scheduler is not None and self._scheduler.alive and not self._scheduler.draining

    async def start(self) -> None:
        """Load the model, measure what it can take, and begin."""
        self._loop = asyncio.get_running_loop()
        config = self.config
        models, slots = await asyncio.to_thread(self._load)
        self._scheduler = Scheduler(
            models,
            self._deliver,
            slots=slots,
            max_batch=config.max_batch,
            gather=config.gather_ms / 1000,
            metrics=self.metrics,
        )
        self.metrics.slots.set(slots)
        self._scheduler.start()
        log.info(
            "ready",
            extra={"model": config.model, "backend": models[0].backend, "slots": slots, "lanes": len(models)},
        )

    def drain(self, done: Callable[[], None]) -> None:
        """Refuse new calls, and call ``done`` when those that run are over or their time is.

        It may be called from a signal handler.
        """
        self.scheduler.drain()

        def begin() -> None:
            log.info("draining", extra={"calls": self.scheduler.active})
            self._drained = asyncio.ensure_future(self._wait_for_calls(done))

        self._loop.call_soon_threadsafe(begin)

    async def _wait_for_calls(self, done: Callable[[], None]) -> None:
        deadline = time.monotonic() + self.config.drain_seconds
        while self.scheduler.active and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self.scheduler.active:
            log.warning("calls were cut off", extra={"calls": self.scheduler.active})
        await asyncio.sleep(0.2)  # for the last messages to leave
        done()

    async def stop(self) -> None:
        """End the lanes."""
        self.scheduler.drain()
        await asyncio.to_thread(self.scheduler.stop)

    def open(self, options: CallOptions, listener: Listener, count: int = 1) -> list[Call]:
        """Begin ``count`` calls whose news go to ``listener``; see `Scheduler.admit`."""
        calls = self.scheduler.admit(options, count)
        for call in calls:
            self._listeners[call] = listener
        return calls

    def close(self, call: Call) -> None:
        """End a call whatever state it is in; nothing more comes from it."""
        self._listeners.pop(call, None)
        call.cancel()

    def default_options(self) -> CallOptions:
        """Options of a call that asks for nothing."""
        return CallOptions(
            language=self.config.language,
            latency=self.config.latency,
            queue_seconds=self.config.queue_seconds,
            vad=self.config.vad,
        )

    def describe(self) -> dict[str, object]:
        """The model, as ``/v1/models`` shows it."""
        model, config = self.model, self.model.config
        right = model.att_context(self.config.latency)[1]
        return {
            "id": self.config.model,
            "object": "model",
            "created": self.started,
            "owned_by": "nemostream",
            "languages": sorted(config.prompts) or [config.default_language],
            "language": self.config.language or config.default_language,
            "latencies": [
                80 * (context[1] + 1) for context in sorted(config.att_context_sizes, key=lambda c: c[1])
            ],
            "latency": 80 * (right + 1),
        }

    def _load(self) -> tuple[list[Model], int]:
        config = self.config
        on_onnx = is_onnx(config.model) and config.backend in (None, "onnx")
        lanes = config.workers or (physical_cores() if on_onnx and config.threads is None else 1)
        model = nemostream.load(
            config.model,
            backend=config.backend,
            precision=config.precision,
            decoder=config.decoder,
            threads=1 if lanes > 1 and config.threads is None else config.threads,
            workers=None if on_onnx else config.workers,  # which is refused there
        )
        model.config.prompt_id(config.language)
        if config.vad:
            QuietByVoice()  # is it installed?
        models = [model, *(model.sibling() for _ in range(lanes - 1))]
        measured = measure_slots(models, config.latency, config.slots or config.max_slots)  # warms up as well
        return models, config.slots or measured

    def _deliver(self, news: list[tuple[Call, News]]) -> None:
        self._loop.call_soon_threadsafe(self._dispatch, news)

    def _dispatch(self, news: list[tuple[Call, News]]) -> None:
        for call, item in news:
            listener = self._listeners.get(call)
            if item.ended:
                self._listeners.pop(call, None)
            if listener is None:
                continue
            try:
                listener(call, item)
            except Exception:  # one conversation's fault must not keep the news from the others
                log.exception("a protocol failed")
