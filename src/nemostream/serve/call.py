"""`Call`: one channel of one conversation, from bytes to results.

The event loop puts audio and requests into its queue (`feed`, `mark`, `end`); its lane's thread takes
them out in order (`advance`), and turns events into news (`hear`). A mark, a client's request for the final
text of all that it sent, ends the session, which flushes the look-ahead exactly, and the next audio begins
a new one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from nemostream.audio import ENCODINGS, encoding_name
from nemostream.decoding.endpoint import Endpoint
from nemostream.engine.model import Model
from nemostream.engine.session import Session
from nemostream.results import Event, Token, Word
from nemostream.text.tokenizer import SPACE
from nemostream.text.words import GrowingWords

_CLOSING = ".,?!;:…。、，？！"
_PIECE_SECONDS = 2  # a longer message is taken in pieces, so that its features do not hold the others up
_REQUESTS = 64  # that may wait for the model; past it the client is not read from


@dataclass(frozen=True)
class CallOptions:
    """What a call is like; see `Model.stream` for what is not described.

    Attributes:
        channels: interleaved channels of the audio; every one is transcribed by a call of its own.
        endpoint: rules for the end of an utterance; None: only marks and the end of the call.
        vad: silero-vad takes part in these rules.
        chunks: that one step may take of it: 1 for live audio, more for a file.
        queue_seconds: audio that may wait for the model; past it the client is not read from.
    """

    language: str | None = None
    latency: int | None = None
    sample_rate: int = 16_000
    encoding: str = "s16le"
    channels: int = 1
    endpoint: Endpoint | None = None
    vad: bool = False
    chunks: int = 1
    boost: tuple[str, ...] = ()
    confidence: bool = False
    queue_seconds: float = 10.0

    @cached_property
    def bytes_per_second(self) -> int:
        """Of the audio as the client sends it."""
        return ENCODINGS[encoding_name(self.encoding)] * self.channels * self.sample_rate


@dataclass(frozen=True, slots=True)
class Result:
    """Text of an utterance; times in seconds from the start of the call.

    Attributes:
        text: of the utterance so far; the next result of the same utterance begins with it.
        delta: what is new in it.
        words: of the utterance so far.
        start: of the utterance: the end of the one before.
        end: of the audio that was taken in so far.
        language: that the model named, or that was set, or None.
        final: the utterance is over.
        mark: the client's request that this answers, if any.
    """

    text: str
    delta: str
    words: tuple[Word, ...]
    start: float
    end: float
    language: str | None
    final: bool = False
    mark: object = None


@dataclass(frozen=True, slots=True)
class News:
    """What a lane tells a call's owner.

    Attributes:
        result: new text, or the end of an utterance.
        error: what went wrong, in a sentence; the call is over.
        ended: nothing will come after this.
    """

    result: Result | None = None
    error: str | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Mark:
    tag: object


@dataclass(frozen=True, slots=True)
class _Language:
    language: str | None


class _End:
    pass


class Call:
    """One channel of a conversation; see the module. ``notify`` wakes its lane."""

    def __init__(self, options: CallOptions, channel: int, notify: Callable[[], None]) -> None:
        self.options, self.channel = options, channel
        self.session: Session | None = None
        self.over = False
        self.due_since = self.stepped_since = time.monotonic()
        self._said_by = 0.0  # when the queued audio would have been said, had all of it been said live
        self._notify = notify
        self._queue: deque[bytes | _Mark | _Language | _End] = deque()
        # each counter is written by one thread only: what was put in by the event loop, what was taken out by
        # the model's
        self._fed = self._taken = 0  # bytes
        self._asked = self._answered = 0  # marks, languages, ends
        self._wanted = 0  # bytes that would complete a chunk
        self._language = options.language
        self._cancelled = self._ending = False
        self._announced = False  # that it is due; `settle` takes it back before the lane looks again
        self._mark: _Mark | _End | None = None  # that the session which is being flushed answers
        self._bytes = 0  # that sessions before this one took
        self._session_bytes = 0
        self._words: GrowingWords | None = None  # of the utterance, as far as it has any
        self._heard: list[Token] = []  # since the last result
        self._named: str | None = None  # the language that the model named last in this utterance
        self._text = ""
        self._start = 0.0
        self._origin = 0.0  # where the session begins
        self._room = asyncio.Event()
        self._room.set()
        self._loop = asyncio.get_running_loop()

    # ---- the event loop's side ----

    def feed(self, audio: bytes) -> None:
        """Queue audio, cut anywhere."""
        if self.over or self._ending or not audio:
            return
        piece = _PIECE_SECONDS * self.options.bytes_per_second
        for start in range(0, len(audio), piece):
            self._queue.append(audio[start : start + piece])
        self._fed += len(audio)
        self._said_by = max(self._said_by, time.monotonic()) + len(audio) / self.options.bytes_per_second
        self._hold_back()
        self._awake()

    def mark(self, tag: object) -> None:
        """Ask for the final text of all audio so far; a final result with this tag answers, exactly once."""
        if not self._ending:
            self._request(_Mark(tag))

    def set_language(self, language: str | None) -> None:
        """Use another language from here on.

        It takes effect with the next chunk. An unknown one must be refused before (`ModelConfig.prompt_id`).
        """
        if not self._ending:
            self._request(_Language(language))

    def end(self) -> None:
        """No more audio; the last news then has ``ended``."""
        if not self._ending:
            self._ending = True
            self._request(_End())

    async def room(self) -> None:
        """Wait until the queue takes more audio and requests."""
        await self._room.wait()

    def cancel(self) -> None:
        """End without results, whatever state it is in; its slot is free after the current step."""
        self._cancelled = self._ending = True
        self._notify()
        self._loop.call_soon_threadsafe(self._room.set)

    def _request(self, request: _Mark | _Language | _End) -> None:
        self._queue.append(request)
        self._asked += 1
        self._hold_back()
        self._awake()

    def _hold_back(self) -> None:
        """Let the client wait if its queue is full."""
        if self._is_filled(1.0):
            self._room.clear()
            # the model's thread may have emptied it meanwhile, and have seen no reason to set it
            if not self._is_filled(1.0):
                self._room.set()

    def _is_filled(self, share: float) -> bool:
        return (
            self._waiting > share * self.options.queue_seconds * self.options.bytes_per_second
            or self._asked - self._answered > share * _REQUESTS
        )

    def _awake(self) -> None:
        if self.is_due and not self._announced:
            self._announced = True
            self.due_since = time.monotonic()
            self._notify()

    # ---- the lane's side ----

    @property
    def cancelled(self) -> bool:
        """It was given up."""
        return self._cancelled

    @property
    def _waiting(self) -> int:
        return self._fed - self._taken

    @property
    def is_due(self) -> bool:
        """There is something to do for it."""
        return (
            self._cancelled
            or self._asked > self._answered
            or self.session_is_due
            or (self._waiting > 0 and self._waiting >= self._wanted)
        )

    @property
    def is_awaited(self) -> bool:
        """Its client waits for a final text that is only a few steps away."""
        if self._mark is not None:
            return True
        chunks = 2 * self.session.chunk_seconds if self.session is not None else 0.0
        return self._asked > self._answered and self._waiting <= self._wanted + self._bytes_of(chunks)

    @property
    def behind_since(self) -> float:
        """When the next chunk could have been stepped: since it is due, or, in a queue, since it was said.

        Audio that comes faster than speech, such as a file's, waits without being behind.
        """
        spare = max(0, self._waiting - self._wanted) / self.options.bytes_per_second
        return min(self.due_since, self._said_by - spare) if spare else self.due_since

    @property
    def session_is_due(self) -> bool:
        """Its session has a chunk for the encoder, or is to be finished."""
        session = self.session  # read once: the other thread may end it
        return session is not None and (session.ready > 0 or self._mark is not None)

    def advance(self, model: Model) -> list[News]:
        """Take from the queue until there is a chunk to step; return what can be answered without one."""
        self.stepped_since = self.behind_since
        news: list[News] = []
        if self._cancelled:
            self._close()
            return news
        while self._queue and not self.session_is_due:
            item = self._queue.popleft()
            if isinstance(item, bytes):
                session = self._open(model)
                audio = self._joined(item, self._bytes_of(session.seconds_missing))
                self._taken += len(audio)
                self._session_bytes += len(audio)
                session.push(audio)
            elif isinstance(item, _Language):
                self._answered += 1
                self._language = item.language
                if self.session is not None:
                    self.session.language = item.language
            else:
                self._answered += 1
                self._mark = item
                if self.session is None:
                    news += self._answer("")
                else:
                    self.session.end()
        return news

    def hear(self, events: list[Event]) -> list[News]:
        """Turn the events of a step into news."""
        news = []
        for event in events:
            event = self._without_late_punctuation(event)
            self._heard += event.tokens
            self._text += event.text
            if event.final:
                self._bytes += self._session_bytes
                self._session_bytes = 0
                self.session = None
                news += self._answer(event.text)
            elif event.utterance is not None:
                news.append(News(self._result(event.text, final=True)))
            elif event.text:
                news.append(News(self._result(event.text)))
        return news

    def _without_late_punctuation(self, event: Event) -> Event:
        """Drop a full stop that the model says after a pause has already ended its sentence.

        The sentence has been given as final, and nobody wants an utterance that is a full stop.
        """
        if self._text.strip() or self._start == 0:
            return event
        text = event.text.lstrip().lstrip(_CLOSING)
        if text == event.text.lstrip():
            return event
        pieces = itertools.dropwhile(lambda token: not token.piece.strip(SPACE + _CLOSING), event.tokens)
        return replace(event, text=text, tokens=tuple(pieces))

    def settle(self) -> None:
        """After a step: say how much audio the next chunk needs, and let the client go on."""
        self._announced = False
        self.due_since = time.monotonic()
        self._wanted = self._bytes_of(self.session.seconds_missing) if self.session is not None else 0
        if not self._is_filled(0.5) and not self._room.is_set():
            self._loop.call_soon_threadsafe(self._room.set)

    def _joined(self, audio: bytes, wanted: int) -> bytes:
        """The audio with packets that follow it, up to ``wanted`` bytes: small ones cost as much as large."""
        packets, size = [audio], len(audio)
        while size < wanted and self._queue and isinstance(following := self._queue[0], bytes):
            packets.append(following)
            size += len(following)
            self._queue.popleft()
        return b"".join(packets)

    def _bytes_of(self, seconds: float) -> int:
        return math.ceil(seconds * self.options.bytes_per_second)

    def _open(self, model: Model) -> Session:
        if self.session is None:
            options = self.options
            self._origin = self._bytes / options.bytes_per_second
            self.session = model.stream(
                self._language,
                latency=options.latency,
                sample_rate=options.sample_rate,
                encoding=options.encoding,
                num_channels=options.channels,
                channel=self.channel,
                endpoint=replace(options.endpoint, vad=options.vad) if options.endpoint else False,
                boost=options.boost,
                confidence=options.confidence,
            )
            self._tokenizer = model.tokenizer
        return self.session

    def _answer(self, delta: str) -> list[News]:
        mark, self._mark = self._mark, None
        self.over = isinstance(mark, _End)
        tag = mark.tag if isinstance(mark, _Mark) else None
        return [News(self._result(delta, final=True, mark=tag), ended=self.over)]

    def _result(self, delta: str, final: bool = False, mark: object = None) -> Result:
        end = (self._bytes + self._session_bytes) / self.options.bytes_per_second
        words: tuple[Word, ...] = ()
        if self._heard and self._words is None:
            self._words = GrowingWords(self._tokenizer, self._origin)
        if self._words is not None:
            tags = self._tokenizer.language_tags
            for token in self._heard:
                self._named = tags.get(token.id, self._named)
            words = self._words.add(self._heard)
            self._heard = []
        language = self._named or (None if self._language == "auto" else self._language)
        result = Result(self._text.strip(), delta, words, self._start, end, language, final, mark)
        if final:
            self._words, self._named, self._text, self._start = None, None, "", end
        return result

    def _close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None
        self._queue.clear()
        self.over = True
