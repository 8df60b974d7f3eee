"""The Wyoming protocol over TCP, for Home Assistant and its satellites.

The protocol knows no keys: it is served on the server's own host, and not at all where keys are set.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine
from dataclasses import replace

from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info
from wyoming.server import AsyncEventHandler, AsyncTcpServer

from nemostream import __version__
from nemostream.errors import BackendError, ConfigError, NemostreamError
from nemostream.serve.call import Call, News
from nemostream.serve.server import Server

_WIDTHS = {2: "s16le", 4: "f32le"}
_ATTRIBUTION = Attribution(name="NVIDIA", url="https://huggingface.co/nvidia")


async def serve_wyoming(server: Server, host: str, port: int) -> AsyncTcpServer:
    """Listen; `stop` of what is returned ends it.

    Raises:
        ConfigError: if API keys are set.
        BackendError: if the port can't be used.
    """
    if server.config.api_keys:
        raise ConfigError(
            "The Wyoming protocol has no keys; leave wyoming_port out, or serve it without api_keys."
        )
    tcp = AsyncTcpServer(host, port)
    try:
        await tcp.start(lambda reader, writer: _Handler(server, reader, writer))
    except OSError as error:
        raise BackendError(
            f"{host}:{port} can't be used ({error.strerror}); choose another wyoming_port."
        ) from error
    return tcp


class _Reader:
    """What the library reads from, with a limit in bytes and in time, which the library has not.

    It takes a ValueError for the end of the connection.
    """

    def __init__(self, reader: StreamReader, server: Server) -> None:
        self._reader = reader
        self._seconds = server.config.idle_seconds
        self._bytes = server.config.max_message_kb * 1024
        self.feed_eof = reader.feed_eof

    async def readline(self) -> bytes:
        return await self._in_time(self._reader.readline())

    async def readexactly(self, n: int) -> bytes:
        if n > self._bytes:
            raise ValueError(f"{n} bytes in one message")
        return await self._in_time(self._reader.readexactly(n))

    async def _in_time(self, reading: Coroutine[None, None, bytes]) -> bytes:
        try:
            return await asyncio.wait_for(reading, self._seconds)
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            raise ValueError("nothing came") from error


class _Handler(AsyncEventHandler):
    """One connection; one utterance after another, each from audio-start to audio-stop."""

    def __init__(self, server: Server, reader: StreamReader, writer: StreamWriter) -> None:
        super().__init__(reader, writer)
        self.reader = _Reader(reader, server)  # type: ignore[assignment]
        self._server = server
        self._language: str | None = server.config.language
        self._call: Call | None = None
        self._news: asyncio.Queue[News] = asyncio.Queue()

    async def handle_event(self, event: Event) -> bool:
        """describe, transcribe, audio-start, audio-chunk, audio-stop."""
        try:
            await asyncio.wait_for(self._handle(event), self._server.config.idle_seconds)
        except NemostreamError as error:
            self._end()
            await self.write_event(Error(text=str(error)).event())
        return True

    async def disconnect(self) -> None:
        """The client has gone."""
        self._end()

    async def _handle(self, event: Event) -> None:
        if Describe.is_type(event.type):
            await self.write_event(self._info().event())
        elif Transcribe.is_type(event.type):
            self._language = Transcribe.from_event(event).language or self._server.config.language
        elif AudioStart.is_type(event.type):
            self._begin(AudioStart.from_event(event))
        elif AudioChunk.is_type(event.type) and self._call is not None:
            self._call.feed(AudioChunk.from_event(event).audio)
            await self._call.room()
        elif AudioStop.is_type(event.type) and self._call is not None:
            self._call.end()
            await self._finish()

    def _begin(self, start: AudioStart) -> None:
        self._end()
        if start.width not in _WIDTHS or start.channels != 1:
            raise NemostreamError(
                f"Audio of {start.channels} channels and {start.width} bytes a sample came; one "
                "channel of 2 bytes was expected."
            )
        options = self._server.default_options()
        options = replace(
            options, language=self._language, sample_rate=start.rate, encoding=_WIDTHS[start.width]
        )
        self._news = asyncio.Queue()
        news = self._news
        (self._call,) = self._server.open(options, lambda _, item: news.put_nowait(_light(item)))
        self._server.metrics.connections.labels("wyoming").inc()

    async def _finish(self) -> None:
        """Send the text, in pieces as it came and whole, which is what older clients read."""
        await self.write_event(TranscriptStart(language=self._language).event())
        while True:
            news = await self._news.get()
            if news.error is not None:
                raise NemostreamError(news.error)
            if news.result is not None and news.result.delta:
                await self.write_event(TranscriptChunk(text=news.result.delta).event())
            if news.ended:
                break
        text = news.result.text if news.result is not None else ""
        await self.write_event(Transcript(text=text, language=self._language).event())
        await self.write_event(TranscriptStop().event())
        self._call = None

    def _end(self) -> None:
        if self._call is not None:
            self._server.close(self._call)
            self._call = None

    def _info(self) -> Info:
        description = self._server.describe()
        languages = [str(name) for name in description["languages"] if name != "auto"]  # type: ignore[attr-defined]
        model = AsrModel(
            name=str(description["id"]),
            attribution=_ATTRIBUTION,
            installed=True,
            description=None,
            version=__version__,
            languages=languages,
        )
        program = AsrProgram(
            name="nemostream",
            attribution=Attribution(name="nemostream", url=""),
            installed=True,
            description="Streaming speech recognition",
            version=__version__,
            models=[model],
            supports_transcript_streaming=True,
        )
        return Info(asr=[program])


def _light(news: News) -> News:
    """Only what is read of it: all of it waits for the end, and every result holds the whole text so far."""
    if news.result is None or news.result.final:
        return news
    return replace(news, result=replace(news.result, text="", words=()))
