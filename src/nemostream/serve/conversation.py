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
from typing import Any, ClassVar, TypeVar

from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from nemostream.errors import NemostreamError
from nemostream.serve.access import Denied
from nemostream.serve.call import Call, CallOptions, News, Result
from nemostream.serve.idle import IdleTimer
from nemostream.serve.scheduler import Refused
from nemostream.serve.server import Server

log = logging.getLogger("nemostream.serve")
T = TypeVar("T")

KEPT_MESSAGES = 2000  # for a client that reads slowly or comes back; past it the client has lost some
KEPT_CHARACTERS = 8_000_000  # of them: interim results of an utterance that never ends are long
POLICY, TRY_LATER, NORMAL, INTERNAL = 1008, 1013, 1000, 1011
_STALL_SECONDS = 20.0  # a client that takes nothing for so long is cut off
_GOODBYE_SECONDS = 1.0  # for telling a connection that has been replaced
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
        self._messages: deque[tuple[int, str]] = deque()
        self._characters = 0  # of these messages
        self._sequence = 0
        self._sent = 0  # sequence of the last message that went to the current socket
        self._outgoing = asyncio.Event()
        self._socket: WebSocket | None = None  # the one that counts; an older one may still be open
        self._tasks: tuple[asyncio.Task[Any], ...] = ()  # that serve it
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
        calls = self.calls if calls is None else calls
        for call in calls:  # all, before anything can interrupt: no channel may miss what another has
            call.feed(audio)
        for call in calls:
            await call.room()

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message for the client."""
        self._sequence += 1
        text = json.dumps(message | {"sequence": self._sequence}, ensure_ascii=False)
        self._messages.append((self._sequence, text))
        self._characters += len(text)
        while len(self._messages) > KEPT_MESSAGES or self._characters > KEPT_CHARACTERS:
            self._characters -= len(self._messages.popleft()[1])
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
            conversation = cls._resumed(server, socket)
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
            conversation._socket = socket
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
    def _resumed(cls, server: Server, socket: WebSocket) -> Conversation | None:
        """The conversation that a client comes back to, set up to go on; None if it begins one."""
        query: QueryParams = socket.query_params
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
        conversation._socket = socket  # from here on nothing counts that comes or goes on another
        server.metrics.resumed.inc()
        return conversation

    async def _attend(self, socket: WebSocket) -> None:
        """Serve one connection until it or the conversation is over."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for task in self._tasks:  # of a half-open connection, which the client has given up
            task.cancel()
        offered = socket.scope.get("subprotocols", [])
        code = BROKEN[0]
        try:
            await socket.accept(subprotocol=self.subprotocol if self.subprotocol in offered else None)
            code = await self._converse(socket)
        except WebSocketDisconnect:
            pass  # gone before the handshake was over
        finally:
            if self._socket is socket:
                self._leave(code)
        if self._socket is not None:  # another connection has taken over
            with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await socket.close(POLICY, "taken up again on another connection")

    async def _converse(self, socket: WebSocket) -> int:
        """Read and write until one of them ends; returns the code of the close."""
        reader = asyncio.create_task(self._read(socket))
        writer = asyncio.create_task(self._write(socket))
        self._tasks = (reader, writer)
        self._outgoing.set()  # a client that is back may have messages to get
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writer, reader):
                task.cancel()
            ended = await asyncio.gather(reader, writer, return_exceptions=True)
        return ended[0] if isinstance(ended[0], int) else BROKEN[0]

    def _leave(self, code: int) -> None:
        """The connection is over: end, or wait for the client to come back."""
        self._socket = None
        # nobody knows whether the last messages arrived, so a finished one is kept as well; it has no slots
        may_return = code in BROKEN if self._closing is None else self._closing[0] == NORMAL
        if may_return and self.server.config.resume_seconds and not self.server.scheduler.draining:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(self.server.config.resume_seconds, self._end)
        else:
            self._end()

    async def _read(self, socket: WebSocket) -> int:
        """Handle messages; returns the code with which the client closed."""
        idle = IdleTimer(self.server.config.idle_seconds, self._on_idle)
        try:
            return await self._handle_messages(socket, idle)
        finally:
            idle.cancel()

    def _on_idle(self) -> None:
        self.on_problem(f"Nothing came for {self.server.config.idle_seconds:.0f} s.")
        self.finish(POLICY, "idle")

    async def _handle_messages(self, socket: WebSocket, idle: IdleTimer) -> int:
        while True:
            idle.wait()
            message = await socket.receive()
            idle.stop()
            if message["type"] == "websocket.disconnect":
                code = int(message.get("code") or NORMAL)
                # a close without a code, as browsers send it, is 1005 too, but has a reason, if an empty one
                return NORMAL if code in BROKEN and "reason" in message else code
            if self._socket is not socket:
                return BROKEN[0]
            if self._closing is not None:
                continue
            try:
                if message.get("bytes") is not None:
                    await self.on_audio(message["bytes"])
                else:
                    await self.on_message(_parse(message.get("text") or ""))
                    for call in self.calls:
                        await call.room()
            except NemostreamError as error:
                self.on_problem(str(error))
                if isinstance(error, Refused | Denied) or (isinstance(error, Problem) and error.fatal):
                    self.finish(TRY_LATER if isinstance(error, Refused) else POLICY, str(error))
            except (AttributeError, KeyError, TypeError, ValueError):  # JSON of another shape
                log.warning("a message was not understood", exc_info=True)
                self.on_problem("The message is not of the form that this protocol has.")
            except Exception:  # ours; whatever it is, it may not hold a slot
                log.exception("a message could not be handled")
                self.on_problem("The server failed to handle a message.")
                self.finish(INTERNAL, "The server failed to handle a message.")

    async def on_audio(self, audio: bytes) -> None:
        """Take a binary message: audio for all calls."""
        await self.feed(audio)

    async def _write(self, socket: WebSocket) -> None:
        while True:
            await self._outgoing.wait()
            if self._socket is not socket:
                return
            self._outgoing.clear()
            for sequence, text in list(self._messages):
                if sequence <= self._sent:
                    continue
                if sequence > self._sent + 1:  # dropped before it could be sent
                    self._closing = (POLICY, "too slow: results were not read")
                    break
                async with asyncio.timeout(_STALL_SECONDS):
                    await socket.send_text(text)
                if self._socket is not socket:
                    return
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
        if self.server.conversations.pop(self.id, None) is not None:
            about = {"protocol": self.protocol, "bytes": self._received, "messages": self._sequence}
            log.info("conversation over", extra=about)


def _parse(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise Problem(f"A JSON object was expected, not {text[:40]!r}.")
    return message


def typed(value: object, kind: type[T], name: str) -> T:
    """Return a value of a message, which must be of a kind.

    Raises:
        Problem: if it is not.
    """
    if not isinstance(value, kind):
        raise Problem(f"{name} is {str(value)[:40]!r}; {_KINDS[kind]} was expected.")
    return value


_KINDS: dict[type, str] = {str: "a string", dict: "an object", list: "a list", int: "a whole number"}


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


def flag(text: str, name: str) -> bool:
    """Read a parameter that is true or false.

    Raises:
        Problem: if it is neither.
    """
    if text.lower() not in ("true", "false"):
        raise Problem(f"{name} is {text!r}; true or false was expected.")
    return text.lower() == "true"


def whole_number(name: str, text: str) -> int:
    """Read a parameter.

    Raises:
        Problem: if it is not a whole number.
    """
    try:
        return int(text)
    except ValueError:
        raise Problem(f"{name} is {text!r}; a whole number was expected.", fatal=True) from None
