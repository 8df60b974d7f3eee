"""The ASGI application: which address leads to which protocol."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from nemostream.serve.config import ServeConfig
from nemostream.serve.protocols.listen import Listen
from nemostream.serve.protocols.realtime import Realtime
from nemostream.serve.protocols.transcriptions import models, problem, transcriptions
from nemostream.serve.protocols.twilio import Twilio, follow
from nemostream.serve.server import Server

if TYPE_CHECKING:
    from wyoming.server import AsyncTcpServer

_PAGE = Path(__file__).parent / "page"


def create_app(config: ServeConfig) -> Starlette:
    """Return the application; the model is loaded when its lifespan begins."""
    server = Server(config)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            await server.start()
            wyoming = await _serve_wyoming(server)
        except Exception as error:
            server.failure = error  # uvicorn only says that the start failed
            raise
        try:
            yield
        finally:
            if wyoming is not None:
                await wyoming.stop()
            await server.stop()

    async def health(_: Request) -> Response:
        alive = server.scheduler.alive
        return JSONResponse(
            {"status": "ok" if alive else "the model's thread has died"}, 200 if alive else 500
        )

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": server.ready}, 200 if server.ready else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def page(_: Request) -> Response:
        return FileResponse(_PAGE / "index.html")

    async def http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem(f"{error.detail}; docs/server.md names the addresses.", error.status_code)

    app = Starlette(
        lifespan=lifespan,
        exception_handlers={HTTPException: http_error},
        routes=[
            Route("/", page),
            Mount("/page", StaticFiles(directory=_PAGE)),
            Route("/healthz", health),
            Route("/readyz", ready),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{id:path}", models),
            Route("/v1/audio/transcriptions", transcriptions, methods=["POST"]),
            Route("/v1/twilio/{sid}", follow),
            WebSocketRoute("/v1/realtime", Realtime.serve),
            WebSocketRoute("/v1/listen", Listen.serve),
            WebSocketRoute("/v1/twilio", Twilio.serve),
        ],
    )
    app.state.server = server
    return app


async def _serve_wyoming(server: Server) -> AsyncTcpServer | None:
    if not server.config.wyoming_port:
        return None
    from nemostream.serve.protocols.wyoming import serve_wyoming

    return await serve_wyoming(server, server.config.host, server.config.wyoming_port)
