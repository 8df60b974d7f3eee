"""One call: packets on time, and a clock on what comes back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from nemostream.load_test.telephone import PACKET_SECONDS, SILENCE, Utterance


@dataclass(slots=True)
class Heard:
    """What came back for one utterance of one call; times in seconds.

    Attributes:
        utterance: its number in the list of recordings.
        text: the whole of its final text.
        lag: from the moment its last packet was due until the final text was there; None if it never came.
        first_partial: from the moment its first packet was due until some text was there; None without text.
        lateness: how late this process sent its packets, the worst of them. When it is large, the load
            generator was the limit and not the server.
    """

    utterance: int
    text: str = ""
    lag: float | None = None
    first_partial: float | None = None
    lateness: float = 0.0


@dataclass(slots=True)
class CallRecord:
    """One call: what was heard, and why it ended early, if it did."""

    heard: list[Heard]
    refused: str | None = None
    broken: str | None = None

    def to_json(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)


class Line(Protocol):
    """A connection in some protocol; `Listen` is this server's, benchmarks bring those of its peers."""

    async def open(self) -> None:
        """Connect.

        Raises:
            Refused: if the server has no room.
        """

    async def send(self, packet: bytes) -> None:
        """Send one packet of audio."""

    async def end_utterance(self) -> None:
        """Ask for the final text of all that was sent."""

    async def receive(self) -> tuple[str, bool]:
        """Wait for news: the text of the utterance so far, and whether that is its final text."""

    async def close(self) -> None:
        """Hang up."""


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The server has no room for this call."""


async def make_call(
    line: Line, utterances: Sequence[Utterance], order: Sequence[int], pause: float, start: float
) -> CallRecord:
    """Speak ``utterances`` in the given order, each after a pause, in real time.

    Args:
        line: not connected yet.
        utterances: the recordings.
        order: which of them, one after another.
        pause: seconds of silence before each; while it passes the final text of the one before comes back.
        start: on the monotonic clock, when the first packet is due.
    """
    record = CallRecord([Heard(number) for number in order])
    try:
        await asyncio.sleep(max(0.0, start - 1 - time.monotonic()))
        await line.open()
    except Refused as refusal:
        record.refused = str(refusal)
        return record
    begins = [0.0] * len(order)
    ends = [0.0] * len(order)
    listening = asyncio.create_task(_listen(line, record.heard, begins, ends))
    try:
        await _speak(line, utterances, record.heard, begins, ends, pause, start)
        await asyncio.wait_for(listening, timeout=30)
    except Exception as error:  # whatever ends a call early is its result
        record.broken = f"{type(error).__name__}: {error}"
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await line.close()
    return record


async def _speak(
    line: Line,
    utterances: Sequence[Utterance],
    heard: list[Heard],
    begins: list[float],
    ends: list[float],
    pause: float,
    start: float,
) -> None:
    due = start
    for turn, item in enumerate(heard):
        packets = utterances[item.utterance].packets
        silence = round(pause / PACKET_SECONDS)
        begins[turn] = due + silence * PACKET_SECONDS
        for packet in [SILENCE] * silence + list(packets):
            wait = due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            else:
                item.lateness = max(item.lateness, -wait)
            await line.send(packet)
            due += PACKET_SECONDS
        ends[turn] = due - PACKET_SECONDS  # when its last packet was due
        await line.end_utterance()


async def _listen(line: Line, heard: list[Heard], begins: list[float], ends: list[float]) -> None:
    for turn, item in enumerate(heard):
        complete = False
        while not complete:
            text, complete = await line.receive()
            now = time.monotonic()
            if text.strip() and item.first_partial is None:
                item.first_partial = now - begins[turn]
            item.text = text
        item.lag = now - ends[turn]


class Listen:
    """This server's ``/v1/listen``, with a Finalize at the end of every utterance."""

    def __init__(self, url: str, options: dict[str, str], api_key: str | None = None) -> None:
        """``url`` like ``ws://127.0.0.1:8000``; ``options`` are query parameters such as ``language``."""
        query = {
            "encoding": "mulaw",
            "sample_rate": "8000",
            "interim_results": "true",
            "endpointing": "false",
        }
        pairs = "&".join(f"{key}={value}" for key, value in (query | options).items())
        self._url = f"{url}/v1/listen?{pairs}"
        self._headers = {"Authorization": f"Token {api_key}"} if api_key else {}
        self._finals: list[str] = []  # of the utterance

    async def open(self) -> None:
        """Connect."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidStatus

        try:
            self._socket = await connect(self._url, additional_headers=self._headers, compression=None)
        except InvalidStatus as error:
            raise Refused(f"HTTP {error.response.status_code}") from None
        except ConnectionClosed as error:
            raise Refused(str(error)) from None

    async def send(self, packet: bytes) -> None:
        """Send one packet."""
        await self._socket.send(packet)

    async def end_utterance(self) -> None:
        """Ask for the final text."""
        await self._socket.send('{"type": "Finalize"}')

    async def receive(self) -> tuple[str, bool]:
        """Wait for a result."""
        message = json.loads(await self._socket.recv())
        if message.get("type") == "Error":
            raise ConnectionError(message["description"])
        if message.get("type") != "Results":
            return " ".join(self._finals), False
        parts = [*self._finals, message["channel"]["alternatives"][0]["transcript"]]
        text = " ".join(part for part in parts if part)
        if message["from_finalize"]:
            self._finals = []
            return text, True
        if message["is_final"]:
            self._finals = parts
        return text, False

    async def close(self) -> None:
        """Hang up."""
        if hasattr(self, "_socket"):
            await self._socket.close()
