"""``/v1/twilio``: Twilio Media Streams, 20 ms of 8 kHz mu-law in each JSON message.

Twilio reads nothing but commands from this socket, so results go two ways: as ``transcript`` events on the
socket, for a program that sits between, and as Server-Sent Events from ``/v1/twilio/STREAM_SID``, for
everybody else. A ``<Stream>`` can't set headers: with API keys, give one as its custom parameter ``api_key``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.websockets import WebSocket

from nemostream.decoding.endpoint import Endpoint
from nemostream.serve.access import Denied
from nemostream.serve.call import Call, Result
from nemostream.serve.conversation import NORMAL, Conversation, Problem, typed, with_latency
from nemostream.serve.server import Server

_TRACKS = ("inbound", "outbound")
_PARAMETERS = ("language", "latency")  # as custom parameters, since Twilio drops the query of an address
_QUEUED_EVENTS = 256  # of a listener that does not read
_COMMENT_SECONDS = 15.0  # of silence, after which a listener is told that the stream lives


class Twilio(Conversation):
    """One slot a track, from the ``start`` message on."""

    protocol = "twilio"

    @classmethod
    async def serve(cls, socket: WebSocket) -> None:
        """As of every protocol, but the key comes with the ``start`` message."""
        socket.scope["key_follows"] = True
        await super().serve(socket)

    async def begin(self) -> None:
        """Nothing to do before ``start``."""
        self._sid = ""
        self._tracks: dict[str, Call] = {}

    async def on_message(self, message: dict[str, Any]) -> None:
        """connected, start, media, dtmf, mark, stop."""
        event = message.get("event")
        if event == "start":
            self._start(message.get("start"))
        elif event == "media":
            await self._media(message.get("media"))
        elif event == "stop":
            for call in self.calls:
                call.end()
            if not self.calls:
                self.finish()
        elif event not in ("connected", "dtmf", "mark"):
            raise Problem(f"The event {event!r} is unknown; start, media or stop was expected.")

    async def on_audio(self, audio: bytes) -> None:
        """Twilio sends none."""
        raise Problem("A binary message came; Twilio Media Streams are JSON.", fatal=True)

    def on_result(self, call: Call, result: Result) -> None:
        """Send what was said on a track."""
        if not result.text:
            return
        track = next(name for name, each in self._tracks.items() if each is call)
        event = {
            "event": "transcript",
            "streamSid": self._sid,
            "track": track,
            "text": result.text,
            "final": result.final,
            "start": round(result.start, 3),
            "end": round(result.end, 3),
            "language": result.language,
            "words": [
                {"word": w.text, "start": round(w.start, 3), "end": round(w.end, 3)} for w in result.words
            ],
        }
        self.send(event)
        _publish(self.server, self._sid, event)

    def on_ended(self, call: Call) -> None:
        """Tell the listeners, and close after the last track."""
        if all(each.over for each in self.calls):
            _publish(self.server, self._sid, None)
            self.finish()

    def finish(self, code: int = NORMAL, reason: str = "") -> None:
        """Close; where Twilio has gone already, the conversation is over at once."""
        super().finish(code, reason)
        if self._socket is None:
            self._end()

    def _leave(self, code: int) -> None:
        """Twilio hangs up after its stop, and never comes back; followers are owed what was heard."""
        self._socket = None
        if self._closing is not None or not self.calls:
            self._end()
        for call in self.calls:
            call.end()

    def _end(self) -> None:
        super()._end()
        _publish(self.server, self._sid, None)  # also where no stop came

    def on_problem(self, message: str) -> None:
        """An event that Twilio ignores and people can read."""
        self.send({"event": "error", "streamSid": self._sid, "message": message})

    def _start(self, start: Any) -> None:
        if not isinstance(start, dict) or self._tracks:
            raise Problem("A start message has an object `start`, and comes once.", fatal=True)
        parameters = typed(start.get("customParameters") or {}, dict, "customParameters")
        key = typed(parameters.get("api_key") or "", str, "api_key")
        self.server.access.check_key(self._connection, key)
        form = typed(start.get("mediaFormat") or {}, dict, "mediaFormat")
        if form.get("encoding", "audio/x-mulaw") != "audio/x-mulaw":
            raise Problem(f"mediaFormat is {form}; audio/x-mulaw was expected.", fatal=True)
        tracks = typed(start.get("tracks") or ["inbound"], list, "tracks")
        if any(track not in _TRACKS for track in tracks):
            raise Problem(f"tracks is {tracks}; inbound, outbound or both was expected.", fatal=True)
        self._sid = str(start.get("streamSid") or self.id)
        given = {name: typed(parameters[name] or "", str, name) for name in _PARAMETERS if name in parameters}
        options = with_latency(self.server.default_options(), {**self.query, **given})
        rate = typed(form.get("sampleRate", 8000), int, "sampleRate")
        options = replace(options, encoding="mulaw", sample_rate=rate, endpoint=Endpoint())
        for track in dict.fromkeys(tracks):
            self.admit(options)
            self._tracks[track] = self.calls[-1]

    async def _media(self, media: Any) -> None:
        if not isinstance(media, dict) or not self._tracks:
            raise Problem("media came before start, or without an object `media`.")
        call = self._tracks.get(typed(media.get("track", "inbound"), str, "track"))
        if call is None:
            raise Problem(f"The track {media.get('track')!r} was not named in start.")
        try:
            audio = base64.b64decode(media.get("payload", ""), validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Problem("payload is not base64.") from None
        await self.feed(audio, [call])


def _publish(server: Server, sid: str, event: dict[str, Any] | None) -> None:
    for queue in server.followers.get(sid, ()):
        if queue.full() and event is None:  # the end must arrive, whatever is lost
            queue.get_nowait()
        if not queue.full():
            queue.put_nowait(event)


async def follow(request: Request) -> Response:
    """``GET /v1/twilio/STREAM_SID``: results of a stream from now on, as Server-Sent Events."""
    server: Server = request.app.state.server
    try:
        server.access.check(request)
    except Denied as error:
        return JSONResponse({"error": {"message": str(error)}}, error.status)
    sid = request.path_params["sid"]

    async def events() -> AsyncIterator[str]:
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_QUEUED_EVENTS)
        server.followers.setdefault(sid, []).append(queue)
        try:
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), _COMMENT_SECONDS)
                except TimeoutError:  # a proxy would cut off a silent stream, and nobody notice a dead one
                    yield ": still here\n\n"
                    continue
                if event is None:
                    return
                yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        finally:
            server.followers[sid].remove(queue)
            if not server.followers[sid]:
                del server.followers[sid]

    return StreamingResponse(events(), media_type="text/event-stream")
