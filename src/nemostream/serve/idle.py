"""`IdleTimer`: notices that a client has been silent, without a timer for every message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleTimer:
    """Calls ``expired`` once, if a wait is longer than ``seconds``.

    A telephone call sends fifty messages a second; to start and cancel a timer for each costs more than to
    read it.
    """

    def __init__(self, seconds: float, expired: Callable[[], None]) -> None:
        self._seconds, self._expired = seconds, expired
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # when the present wait began
        self._handle = self._loop.call_later(seconds, self._check)

    def wait(self) -> None:
        """A wait begins."""
        self._since = self._loop.time()

    def stop(self) -> None:
        """It is over."""
        self._since = None

    def cancel(self) -> None:
        """Never call."""
        self._handle.cancel()

    def _check(self) -> None:
        waited = 0.0 if self._since is None else self._loop.time() - self._since
        if waited >= self._seconds:
            self._expired()
        else:
            self._handle = self._loop.call_later(self._seconds - waited, self._check)
