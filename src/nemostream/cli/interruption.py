"""`Interruption`: Ctrl-C ends a live stream, whose last words are still recognised and written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class Interruption:
    """A context in which the first Ctrl-C interrupts nothing but `waiting`; the second is as ever.

    Attributes:
        asked: the user wants to stop.
    """

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False
        self._former: Callable[[int, FrameType | None], object] | int | None = None

    def waiting(self, wait: Callable[[], T]) -> T:
        """Call a function that may wait for a long time.

        Raises:
            KeyboardInterrupt: if the user asks to stop, or did so before.
        """
        try:
            self._waiting = True
            if self.asked:
                raise KeyboardInterrupt
            return wait()
        finally:
            self._waiting = False

    def __enter__(self) -> Self:
        former = signal.getsignal(signal.SIGINT)
        # a process in a script's background ignores Ctrl-C, and goes on doing so
        if former is not signal.SIG_IGN and threading.current_thread() is threading.main_thread():
            self._former = former
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if self._waiting or again:
            raise KeyboardInterrupt
