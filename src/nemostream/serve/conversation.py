"""`Conversation`: one client over a WebSocket, or over several if its connection breaks.

A subclass is a protocol: it turns messages into `Call`s' audio and requests, and results into messages. This
class has what all share: admission, limits, a bounded queue of outgoing messages, and resumption.

**Resumption.** Every message has a ``sequence``, and the first one names the ``session``. Whoever lost the
connection connects again with ``?session=ID&received=SEQUENCE&offset=BYTES``: the last sequence that
arrived, and how many bytes of audio come before the first that will be sent. Messages after that are sent
again, bytes that had arrived are skipped, and nothing is lost or said twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from nemostream.errors import NemostreamError
from nemostream.serve.access import Denied
from nemostream.serve.call import Call, CallOptions, News, Result
from nemostream.serve.scheduler import Refused
from nemostream.serve.server import Server

log = logging.getLogger("nemostream.serve")

KEPT_MESSAGES = 2000  # for a client that reads slowly or comes back; past it the client has lost some
POLICY, TRY_LATER, NORMAL, INTERNAL = 1008, 1013, 1000, 1011
BROKEN = (1005, 1006)  # without a closing handshake; uvicorn says 1005 when the network has gone


class Problem(NemostreamError):  # noqa: N818 - the client's, not ours
    """A message that makes no sense; the client is told, and the conversation goes on or not."""

    def __init__(self, message: str, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class Conversation:
    """See the module. ``connection`` is the client's first; its parameters are the conversation's."""

    protocol: ClassVar[str]
    subprotocol: ClassVar[str | None] = None

    def __init__(self, server: Server, connection: HTTPConnection) -> None:
        self.server, self.query = server, connection.query_params
        self._connection = connection
        self.id = secrets.token_urlsafe(18)
        self.calls: list[Call] = []
        self._received = 0  # bytes of audio
        self._skip = 0  # bytes that a client that came back sends again
        self._messages: deque[tuple[int, str]] = deque(maxlen=KEPT_MESSAGES)
        self._sequence = 0
        self._sent = 0  # sequence of the last message that went to the current socket
        self._outgoing = asyncio.Event()
        self._socket: WebSocket | None = None
        self._closing: tuple[int, str] | None = None  # close so when all messages are sent
        self._expiry: asyncio.TimerHandle | None = None

    # ---- what a protocol does ----

    async def begin(self) -> None:
        """The client is connected: admit calls, send a greeting.

        Raises:
            NemostreamError: if the parameters make no sense, or there is no room.
        """
        raise NotImplementedError

    async def on_message(self, message: dict[str, Any]) -> None:
        """Take a JSON message.

        Raises:
            Problem: if it makes no sense.
        """
        raise NotImplementedError

    def on_result(self, call: Call, result: Result) -> None:
        """Send what a call brought."""
        raise NotImplementedError

    def on_problem(self, message: str) -> None:
        """Tell the client what was wrong."""
        self.send({"type": "Error", "description": message})

    def on_ended(self, call: Call) -> None:
        """The last result of a call was given."""
        if all(each.over for each in self.calls):
            self.finish()

    # ---- what a protocol uses ----

    def admit(self, options: CallOptions) -> None:
        """Begin one call for each channel.

        Raises:
            Refused: if there is no room; see also `Scheduler.admit`.
        """
        self.calls += self.server.open(options, self._on_news, options.channels)

    async def feed(self, audio: bytes, calls: list[Call] | None = None) -> None:
        """Give audio to the calls, all of them by default, and wait while their queues are full."""
        self._received += len(audio)
        if self._skip:
            skipped = min(self._skip, len(audio))
            self._skip -= skipped
            self._received -= skipped
            audio = audio[skipped:]
        targets = self.calls if calls is None else calls
        for call in targets:  # all of them before any wait, which another connection may interrupt
            call.feed(audio)
        for call in targets:
            await call.room()

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message for the client."""
        self._sequence += 1
        text = json.dumps(message | {"sequence": self._sequence}, ensure_ascii=False)
        self._messages.append((self._sequence, text))
        self._outgoing.set()

    def finish(self, code: int = NORMAL, reason: str = "") -> None:
        """Close when all messages are sent; the conversation is over."""
        if self._closing is None:
            self._closing = (code, reason[:120])  # a close frame holds 123 bytes
        self._outgoing.set()

    # ---- connections ----

    @classmethod
    async def serve(cls, socket: WebSocket) -> None:
        """Handle a new WebSocket from its first byte to its last."""
        server: Server = socket.app.state.server
        try:
            server.access.check(socket)
            conversation = cls._resumed(server, socket.query_params)
        except (Denied, Problem) as error:
            await cls._reject(socket, error.status if isinstance(error, Denied) else 404, str(error))
            return
        if conversation is None:
            conversation = cls(server, socket)
            try:
                await conversation.begin()
            except NemostreamError as error:
                status = 503 if isinstance(error, Refused) else 400
                await cls._reject(socket, status, str(error))
                return
            server.metrics.connections.labels(cls.protocol).inc()
            server.conversations[conversation.id] = conversation
        offered = socket.scope.get("subprotocols", [])
        await socket.accept(subprotocol=cls.subprotocol if cls.subprotocol in offered else None)
        await conversation._attend(socket)

    @staticmethod
    async def _reject(socket: WebSocket, status: int, reason: str) -> None:
        """Answer the handshake with an error status; where that is not possible, close at once."""
        if "websocket.http.response" in socket.scope.get("extensions", {}):
            from starlette.responses import JSONResponse

            headers = {"Retry-After": "5"} if status in (429, 503) else None
            answer = JSONResponse({"error": {"message": reason}}, status, headers=headers)
            await socket.send_denial_response(answer)
            return
        await socket.accept()
        await socket.close({503: TRY_LATER, 429: TRY_LATER}.get(status, POLICY), reason[:120])

    @classmethod
    def _resumed(cls, server: Server, query: QueryParams) -> Conversation | None:
        """The conversation that a client comes back to, set up to go on; None if it begins one."""
        session = query.get("session")
        if session is None:
            return None
        conversation = server.conversations.get(session)
        if not isinstance(conversation, cls):
            raise Problem("There is no such session, or its time is over; connect without one.")
        try:
            received = int(query.get("received", conversation._sequence))
            offset = int(query.get("offset", conversation._received))
        except ValueError:
            raise Problem("received and offset are not whole numbers.") from None
        oldest = conversation._messages[0][0] if conversation._messages else 1
        if not 0 <= offset <= conversation._received:
            raise Problem(
                f"offset is {offset}, but {conversation._received} bytes have arrived; send again from there."
            )
        if received < oldest - 1 or received > conversation._sequence:
            raise Problem(
                f"received is {received}, but the messages kept are {oldest} to {conversation._sequence}."
            )
        conversation._skip = conversation._received - offset
        conversation._sent = received
        server.metrics.resumed.inc()
        return conversation

    async def _attend(self, socket: WebSocket) -> None:
        """Serve one connection until it or the conversation is over."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        old, self._socket = self._socket, socket
        self._outgoing.set()  # what the client missed goes out at once
        if old is not None:  # a half-open connection, which the client has given up
            with contextlib.suppress(RuntimeError):
                await old.close(POLICY, "taken up again on another connection")
        writer = asyncio.create_task(self._write(socket))
        reader = asyncio.create_task(self._read(socket))
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = reader.done() and not reader.cancelled() and reader.exception() is None
            code = reader.result() if ended else BROKEN[0]
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)
            self._leave(socket, code)

    def _leave(self, socket: WebSocket, code: int) -> None:
        """A connection is over: end the conversation, or keep it for a while."""
        if self._socket is not socket:
            return  # another connection has taken over
        self._socket = None
        over = self._closing is not None or code not in BROKEN
        if over or not self.server.config.resume_seconds or self.server.scheduler.draining:
            self._end()
        else:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(self.server.config.resume_seconds, self._end)

    async def _read(self, socket: WebSocket) -> int:
        """Handle messages; returns the code with which the client closed."""
        while True:
            try:
                message = await asyncio.wait_for(socket.receive(), self.server.config.idle_seconds)
            except TimeoutError:
                self.on_problem(f"Nothing came for {self.server.config.idle_seconds:.0f} s.")
                self.finish(POLICY, "idle")
                await asyncio.sleep(3600)  # until the writer has closed
                continue
            if message["type"] == "websocket.disconnect":
                return int(message.get("code") or NORMAL)
            if self._closing is not None:
                continue
            try:
                if message.get("bytes") is not None:
                    await self.on_audio(message["bytes"])
                else:
                    await self.on_message(_parse(message.get("text") or ""))
            except NemostreamError as error:
                self.on_problem(str(error))
                if isinstance(error, Refused | Denied) or (isinstance(error, Problem) and error.fatal):
                    self.finish(TRY_LATER if isinstance(error, Refused) else POLICY, str(error))
            except (
                AttributeError,
                KeyError,
                TypeError,
                ValueError,
            ):  # JSON, but not of the shape that it should have
                log.warning("a message was not understood", exc_info=True)
                self.on_problem("The message is not of the form that this protocol has.")

    async def on_audio(self, audio: bytes) -> None:
        """Take a binary message: audio for all calls."""
        await self.feed(audio)

    async def _write(self, socket: WebSocket) -> None:
        while True:
            await self._outgoing.wait()
            self._outgoing.clear()
            for sequence, text in list(self._messages):
                if sequence <= self._sent:
                    continue
                if sequence > self._sent + 1:  # dropped before it could be sent
                    self._closing = (POLICY, "too slow: results were not read")
                    break
                await socket.send_text(text)
                self._sent = sequence
            if self._closing is not None and (self._sent == self._sequence or "slow" in self._closing[1]):
                with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                    if socket.application_state is WebSocketState.CONNECTED:
                        await socket.close(*self._closing)
                return

    def _on_news(self, call: Call, news: News) -> None:
        if news.error is not None:
            self.on_problem(news.error)
            self.finish(INTERNAL, news.error)
            return
        if news.result is not None:
            self.on_result(call, news.result)
        if news.ended:
            self.on_ended(call)

    def _end(self) -> None:
        for call in self.calls:
            self.server.close(call)
        self.server.conversations.pop(self.id, None)


def _parse(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise Problem(f"A JSON object was expected, not {text[:40]!r}.")
    return message


def with_latency(options: CallOptions, query: Mapping[str, str]) -> CallOptions:
    """Apply the parameters that all protocols have: ``language`` and ``latency``.

    Raises:
        Problem: if the latency is not a number.
    """
    if "language" in query:
        options = replace(options, language=query["language"] or None)
    if "latency" in query:
        options = replace(options, latency=whole_number("latency", query["latency"]))
    return options


def whole_number(name: str, text: str) -> int:
    """Read a parameter.

    Raises:
        Problem: if it is not a whole number.
    """
    try:
        return int(text)
    except ValueError:
        raise Problem(f"{name} is {text!r}; a whole number was expected.", fatal=True) from None
