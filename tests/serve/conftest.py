"""A real server on a real socket, with the embedded model."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` is not installed")

import nemostream
from nemostream.audio import load_audio
from nemostream.loading import embedded_clip
from nemostream.serve.app import create_app
from nemostream.serve.config import ServeConfig
from nemostream.serve.run import uvicorn_server
from nemostream.serve.server import Server

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.flac"))


@dataclass
class Running:
    """A server in a thread of this process."""

    port: int
    state: Server

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def wait_until_idle(self, seconds: float = 10) -> None:
        """Every slot must come back by itself."""
        deadline = time.monotonic() + seconds
        while self.state.scheduler.active or self.state.conversations:
            assert time.monotonic() < deadline, f"{self.state.scheduler.active} slots are still taken"
            time.sleep(0.02)


@contextmanager
def running(**settings: object) -> Iterator[Running]:
    config = ServeConfig(port=0, **({"slots": 16, "resume_seconds": 0.5} | settings)).checked()
    app = create_app(config)
    server, listener = uvicorn_server(config, app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    try:
        yield Running(listener.getsockname()[1], app.state.server)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with running() as started:
        yield started
        started.wait_until_idle()  # no test may leak a slot


@pytest.fixture(scope="session")
def model() -> nemostream.Model:
    return nemostream.load()


@pytest.fixture(scope="session")
def clip() -> np.ndarray:
    """The embedded clip, 16 kHz."""
    return load_audio(embedded_clip())


def s16le(samples: np.ndarray) -> bytes:
    return np.round(np.clip(samples, -1, 32767 / 32768) * 32768).astype("<i2").tobytes()


def mulaw(samples: np.ndarray) -> bytes:
    """[N] or [N, channels] at 8 kHz."""
    raw = io.BytesIO()
    soundfile.write(raw, samples, 8000, format="RAW", subtype="ULAW")
    return raw.getvalue()


@pytest.fixture(scope="session")
def expect(model: nemostream.Model) -> Callable[..., str]:
    """What a session alone makes of bytes."""

    def text(audio: bytes, **options: object) -> str:
        with model.stream(**options) as session:
            session.feed(audio)
            session.finish()
            return session.transcript().text.strip()

    return text
