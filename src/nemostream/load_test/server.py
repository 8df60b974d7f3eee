"""A server as a child process: start it, wait until it is ready, watch what it uses."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from nemostream.checkpoints.files import optional_module
from nemostream.errors import BackendError

SAMPLE_SECONDS = 0.5


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A running server; use it as a context manager, so that it is stopped."""

    def __init__(
        self, command: Sequence[str], ready: Callable[[], bool], patience: float = 300.0, **environment: Any
    ) -> None:
        """Start ``command`` and wait until ``ready()``.

        Raises:
            BackendError: if it ends before, or is not ready after ``patience`` seconds.
        """
        self._log: list[str] = []
        self._process = subprocess.Popen(  # noqa: S603 - our own command line
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **environment
        )
        threading.Thread(target=self._drain, daemon=True).start()
        deadline = time.monotonic() + patience
        while not ready():
            if self._process.poll() is not None:
                raise BackendError(f"The server did not start: {' '.join(self._log[-3:])}.")
            if time.monotonic() > deadline:
                self.close()
                raise BackendError(f"The server was not ready after {patience:.0f} s.")
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def close(self) -> None:
        """Stop it, kindly at first."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drain(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._log = [*self._log[-20:], line.strip()]


def http_ready(url: str) -> Callable[[], bool]:
    """Return a check that ``url`` answers with success."""

    def check() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - http on loopback
                return bool(answer.status == 200)
        except OSError:  # URLError and HTTPError are OSErrors: not there yet, or not ready
            return False

    return check


class Usage:
    """Watches a process: average number of busy cores, and largest resident memory."""

    def __init__(self, pid: int) -> None:
        psutil = optional_module("psutil", "serve", "Watching a server's memory")
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self.megabytes = 0.0
        self.cores = 0.0

    def __enter__(self) -> Self:
        self._begin, self._busy = time.monotonic(), self._cpu_seconds()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.cores = (self._cpu_seconds() - self._busy) / (time.monotonic() - self._begin)

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.megabytes = max(self.megabytes, self._process.memory_info().rss / 1e6)

    def _cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)
