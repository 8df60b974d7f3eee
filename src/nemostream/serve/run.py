"""Runs the application with uvicorn, until SIGTERM or SIGINT and the end of the calls."""

from __future__ import annotations

import json
import logging
import signal
import socket
import time
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from nemostream.errors import BackendError
from nemostream.serve.app import create_app
from nemostream.serve.config import ServeConfig

_PING_SECONDS = 20.0  # keeps addresses alive in routers
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, message, and what a call gave as ``extra``; never audio or
    text."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _UvicornServer(uvicorn.Server):
    """uvicorn closes its connections when it is told to stop; here the calls go on, and then it stops."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second stops at once."""
        app = self.config.app
        server = app.state.server if self.started and isinstance(app, Starlette) else None
        if server is None or not server.scheduler.active or server.scheduler.draining or sig not in _SIGNALS:
            super().handle_exit(sig, frame)
            return
        server.drain(lambda: setattr(self, "should_exit", True))


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_server(config: ServeConfig) -> None:
    """Serve until told to stop.

    Raises:
        BackendError: if the address can't be used.
        NemostreamError: if the model can't be loaded, or does not know a setting.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    # uvicorn takes an answer instead of a handshake, which is how calls are refused, for a fault
    logging.getLogger("uvicorn.error").addFilter(_is_wanted)
    app = create_app(config)
    server, listener = uvicorn_server(config, app)
    logging.getLogger("nemostream.serve").info(
        "listening", extra={"host": config.host, "port": listener.getsockname()[1]}
    )
    try:
        server.run(sockets=[listener])
    except SystemExit:  # the start failed; which code uvicorn has for it says nothing
        if app.state.server.failure is None:
            raise
    if app.state.server.failure is not None:
        raise app.state.server.failure


def _is_wanted(record: logging.LogRecord) -> bool:
    """Not every message of uvicorn's is.

    It takes an answer instead of a handshake, which is how calls are refused, for a fault; it writes the
    addresses of WebSockets, which hold session ids and key terms; and it shows a wrong setting as a
    traceback.
    """
    text = record.getMessage()
    return not ("completing handshake" in text or '"WebSocket ' in text or text.startswith("Traceback"))


def uvicorn_server(config: ServeConfig, app: ASGIApp) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server that is not started, and the socket that it is to listen on.

    Raises:
        BackendError: if the address can't be used.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        raise BackendError(
            f"{config.host}:{config.port} can't be used ({error.strerror}); choose another with "
            "--port or --host."
        ) from error
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # an address may hold what is private
        server_header=False,
        http="h11",  # httptools has no limit for an address and headers, and copies them again and again
        ws="websockets-sansio",
        ws_max_size=config.max_message_kb * 1024,
        ws_ping_interval=_PING_SECONDS,
        # no time limit: answers of a client that is slowed down wait behind its audio; `idle_seconds` and the
        # limit of writing find connections that are half-open
        ws_ping_timeout=None,
        ws_per_message_deflate=False,  # audio does not compress, and it costs
        timeout_graceful_shutdown=5,
    )
    return _UvicornServer(settings), listener
