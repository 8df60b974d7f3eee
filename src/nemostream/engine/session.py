"""`Session`: the seam above the engine. Audio of any kind goes in, events come out.

bytes -> PcmDecoder -> channel -> Resampler -> Stream -> Engine -> tokens -> Detokenizer -> Event
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from nemostream.audio import (
    Channels,
    PcmDecoder,
    Resampler,
    as_float32,
    check_channels,
    select_channels,
)
from nemostream.config import FRAME_MS, SAMPLE_RATE
from nemostream.decoding.beam import BeamHypothesis
from nemostream.engine.engine import Engine
from nemostream.engine.stream import Stream
from nemostream.engine.utterances import Segmenter
from nemostream.errors import AudioError, SessionError
from nemostream.results import Alternative, Event, Token, Transcript
from nemostream.text.detokenizer import Detokenizer
from nemostream.text.words import words_of


class Session:
    """One live stream. Made by `Model.stream`; used by one thread at a time.

    Use it as a context manager, or call `finish` or `close`, so that its slot is free again.
    """

    def __init__(
        self,
        engine: Engine,
        stream: Stream,
        *,
        language: str | None,
        sample_rate: int,
        encoding: str | None,
        num_channels: int,
        channel: Channels,
        chunks_per_call: int,
        segmenter: Segmenter | None = None,
    ) -> None:
        if chunks_per_call < 1:
            raise SessionError(f"chunks_per_call is {chunks_per_call}; 1 or more was expected.")
        if chunks_per_call > engine.max_chunks(stream):
            raise SessionError(
                f"chunks_per_call is {chunks_per_call}, but this bundle takes at most "
                f"{engine.max_chunks(stream)} chunks of this latency in one call."
            )
        check_channels(channel, num_channels)
        self._engine, self._stream = engine, stream
        self._tokenizer = engine.runtime.tokenizer
        self._language = language
        self._decoder = PcmDecoder(encoding, num_channels) if encoding is not None else None
        self._num_channels, self._channel = num_channels, channel
        self._resampler = Resampler(sample_rate, SAMPLE_RATE)
        self._detokenizer = Detokenizer(self._tokenizer)
        self._chunks_per_call = chunks_per_call
        self._segmenter = segmenter
        self._samples_in = 0  # at the source's rate, per channel
        self._samples = 0  # at 16 kHz
        self._tokens: list[Token] = []
        self._text: list[str] = []
        self._open = True
        self._ended = False

    @property
    def language(self) -> str | None:
        """The language asked for; assign to change it from the next chunk on."""
        return self._language

    @language.setter
    def language(self, language: str | None) -> None:
        self._stream.prompt_id = self._engine.runtime.config.prompt_id(language)
        self._language = language

    def feed(self, audio: bytes | bytearray | memoryview | NDArray[np.generic]) -> list[Event]:
        """Take the next audio and return what it brought: nothing, or one event, or one per utterance.

        A server that steps many sessions at once calls `push` and `step_sessions` instead.

        Args:
            audio: raw bytes in the session's encoding, cut anywhere, or an array [N] or [N, channels] of
                float or integer samples.

        Raises:
            AudioError: if it can't be used; the session stays as it was before this call.
            SessionError: after `finish` or `close`.
        """
        self.push(audio)
        return self._events(self._run(self._chunks_per_call), final=False)

    def finish(self) -> list[Event]:
        """End the stream: flush resampler, features and look-ahead, and return the final event."""
        self.end()
        return self._last_events(self._run(1))

    def push(self, audio: bytes | bytearray | memoryview | NDArray[np.generic]) -> None:
        """Take the next audio, as `feed` does, and leave the encoder's work to `step_sessions`."""
        self._check_open()
        samples = self._mono(audio)
        self._samples_in += len(samples)
        self._push(self._resampler.feed(samples))

    def end(self) -> None:
        """No more audio will come; what is left to do, `step_sessions` does."""
        self._check_open()
        self._push(self._resampler.finish())
        self._stream.finish()
        self._ended = True

    @property
    def ready(self) -> int:
        """Chunks that wait for the encoder."""
        return self._stream.framer.ready()

    @property
    def seconds_missing(self) -> float:
        """Audio until the next chunk is ready, 0 if one is; a resampler's own delay is not counted."""
        frames = self._stream.framer.missing()
        return self._stream.features.missing(frames) / SAMPLE_RATE if frames else 0.0

    @property
    def chunk_seconds(self) -> float:
        """Length of a chunk of audio."""
        return self._stream.chunk_frames * FRAME_MS / 1000

    def close(self) -> None:
        """Give up the stream without its last words. Does nothing after `finish`."""
        if self._open:
            self._open = False
            self._engine.close(self._stream)

    def transcript(self) -> Transcript:
        """All that was recognised so far."""
        language = self._detokenizer.language
        if language is None and self._language != "auto":
            language = self._language
        return Transcript(
            text="".join(self._text),
            language=language,
            duration=self._samples / SAMPLE_RATE,
            tokens=tuple(self._tokens),
            words=words_of(self._tokens, self._tokenizer),
            utterances=tuple(self._segmenter.utterances) if self._segmenter is not None else (),
            alternatives=self._alternatives(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._open or self._ended:
            raise SessionError("This session is over; make a new one with Model.stream().")

    def _mono(self, audio: bytes | bytearray | memoryview | NDArray[np.generic]) -> NDArray[np.float32]:
        if isinstance(audio, bytes | bytearray | memoryview):
            if self._decoder is None:
                raise SessionError(
                    "Raw bytes need an encoding; pass encoding='s16le' (or another) to Model.stream()."
                )
            samples = self._decoder.decode(audio)
        else:
            samples = as_float32(audio, self._samples_in)
            if samples.ndim == 1:
                samples = samples[:, None]
            if samples.shape[1] != self._num_channels:
                raise AudioError(
                    f"The array has {samples.shape[1]} channels, but the session was made for "
                    f"{self._num_channels}; pass num_channels to Model.stream()."
                )
        return select_channels(samples, self._channel)

    def _push(self, samples: NDArray[np.float32]) -> None:
        self._samples += len(samples)
        self._stream.feed(samples)
        if self._segmenter is not None:
            self._segmenter.listen(samples)

    def _run(self, least: int) -> list[Token]:
        """Step while at least ``least`` chunks are ready; return the new tokens."""
        tokens: list[Token] = []
        while self._stream.framer.ready() >= least:
            (emitted,) = self._engine.step([self._stream], self._chunks_per_call)
            tokens += self._tokens_of(emitted)
        return tokens

    def _deliver(self, emitted: list[tuple[int, int]]) -> list[Event]:
        """Events of tokens that a step for many sessions gave this one."""
        tokens = self._tokens_of(emitted)
        if self._ended and not self.ready:
            return self._last_events(tokens)
        return self._events(tokens, final=False)

    def _last_events(self, tokens: list[Token]) -> list[Event]:
        if self._stream.decoder is not None:
            tokens = tokens + self._tokens_of(self._stream.decoder.finish(self._stream.hypothesis))
        events = self._events(tokens, final=True)
        self.close()
        return events

    def _tokens_of(self, emitted: list[tuple[int, int]]) -> list[Token]:
        """Tokens that the decoder has just given, with their probabilities if it keeps them."""
        if not emitted:
            return []
        pieces = self._tokenizer.pieces
        log_probs: Sequence[float | None] = self._stream.hypothesis.log_probs or [None] * len(emitted)
        return [
            Token(token, pieces[token], frame, log_prob)
            for (token, frame), log_prob in zip(emitted, log_probs, strict=True)
        ]

    def _events(self, tokens: list[Token], *, final: bool) -> list[Event]:
        if self._segmenter is None:
            return self._event(tokens, final=final)
        events: list[Event] = []
        language = None if self._language == "auto" else self._language
        for part, ended in self._segmenter.cut(tokens, self._stream.hypothesis.frames):
            last = final and not ended  # what `cut` gives last does not end by a pause
            made = self._event(part, final=last)
            for event in made:
                self._segmenter.add(event.tokens, event.text)
            if ended or last:
                utterance = self._segmenter.end(language)
                made = [replace(event, utterance=utterance) for event in made] or (
                    [Event("", (), self._detokenizer.language, utterance=utterance)] if utterance else []
                )
            events += made
        return events

    def _event(self, tokens: list[Token], *, final: bool) -> list[Event]:
        text = "".join(self._detokenizer.push(token.id) for token in tokens)
        if final:
            text += self._detokenizer.finish()
        if not tokens and not final:
            return []
        self._tokens += tokens
        self._text.append(text)
        return [Event(text, tuple(tokens), self._detokenizer.language, final)]

    def _alternatives(self) -> tuple[Alternative, ...]:
        """What a beam search ended with, as whole texts; two may read the same."""
        hypothesis = self._stream.hypothesis
        if not isinstance(hypothesis, BeamHypothesis) or not hypothesis.alternatives:
            return ()
        ids = [token.id for token in self._tokens]
        shared = ids[: len(ids) - len(hypothesis.alternatives[0][0])]
        return tuple(
            Alternative(self._tokenizer.decode([*shared, *ending]), score)
            for ending, score in hypothesis.alternatives
        )


def step_sessions(sessions: Sequence[Session], chunks: int = 1) -> list[list[Event]]:
    """Take up to ``chunks`` chunks of every session through the encoder in as few calls as possible.

    Args:
        sessions: of one model, none of them twice. What a session gets does not depend on the others.
        chunks: the most that one session may take.

    Returns:
        for each session its events. One that has ended and has no chunk left gives its final event and is
        closed, so that it must not be given again.
    """
    if not sessions:
        return []
    emitted = sessions[0]._engine.step([session._stream for session in sessions], chunks)
    return [session._deliver(tokens) for session, tokens in zip(sessions, emitted, strict=True)]
