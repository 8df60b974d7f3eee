"""The thread on which everything of MLX happens.

MLX's arrays and its queue of work belong to the thread that made them. And what MLX keeps for a thread is
freed when that thread ends, by code that takes Python's lock: if Python has ended by then, the program is
aborted. So there is one thread for the whole process, it never ends, and an executor, whose threads end with
the program, will not do.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Job = tuple["Future[Any]", Callable[[], Any]]
_jobs: SimpleQueue[_Job] = SimpleQueue()
_lock = threading.RLock()  # a collection that happens inside may free a model, which submits too
_thread: threading.Thread | None = None


def submit(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function on MLX's thread, after what was submitted before."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_work, name="nemostream-mlx", daemon=True)
            _thread.start()
            atexit.register(_settle)
    future: Future[T] = Future()
    _jobs.put((future, lambda: function(*args, **kwargs)))
    return future


def _work() -> None:
    while True:
        future, call = _jobs.get()
        try:
            future.set_result(call())
        except BaseException as error:  # it belongs to who waits for the result
            future.set_exception(error)
        del future, call  # the next job may be long in coming, and these hold arrays


def _settle() -> None:
    """Before Python ends, wait for a call that is still running, after an interrupt for example."""
    submit(lambda: None).result()
