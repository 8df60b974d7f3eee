"""`Model`: a loaded model, ready to transcribe files and to open live sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Unpack

import numpy as np
from numpy.typing import NDArray

from nemostream.audio import AudioFile, Channels, as_float32, check_rate
from nemostream.config import SAMPLE_RATE, ModelConfig
from nemostream.decoding import DecodingOptions, decoder_for
from nemostream.decoding.endpoint import Endpoint
from nemostream.engine.engine import Engine
from nemostream.engine.session import Session
from nemostream.engine.utterances import Itn, Segmenter
from nemostream.errors import AudioError, ContextError
from nemostream.results import Transcript
from nemostream.runtimes.protocol import Runtime
from nemostream.text.tokenizer import Tokenizer

FRAMES_PER_FILE_CALL = 112  # 9 s: past this, a longer call is no faster on a CPU and only costs memory
_BLOCK_SECONDS = 10.0

Progress = Callable[[float, float | None], None]  # seconds done, seconds in all if known


class Model:
    """A model on a runtime. Sessions and files share its arena of slots."""

    def __init__(self, runtime: Runtime) -> None:
        self.engine = Engine(runtime)

    @property
    def config(self) -> ModelConfig:
        """Dimensions, contexts, languages."""
        return self.engine.runtime.config

    @property
    def tokenizer(self) -> Tokenizer:
        """Pieces of the vocabulary."""
        return self.engine.runtime.tokenizer

    @property
    def backend(self) -> str:
        """Name of the runtime, such as "onnx"."""
        return self.engine.runtime.name

    def sibling(self) -> Model:
        """A model on the same weights that another thread can use at the same time.

        On a runtime that cannot do this it is this model itself, whose users then take turns.
        """
        make = getattr(self.engine.runtime, "sibling", None)
        return self if make is None else Model(make())

    def att_context(
        self, latency: int | None = None, att_context_size: Sequence[int] | None = None
    ) -> tuple[int, int]:
        """The (left, right) context that a latency in milliseconds, or an explicit size, stands for.

        Raises:
            ContextError: if both are given, or the model can't run with it.
        """
        if latency is not None and att_context_size is not None:
            raise ContextError("Give either latency or att_context_size, not both.")
        if latency is not None:
            return self.config.context_for_latency(latency)
        return self.config.resolve_att_context(att_context_size)

    def stream(
        self,
        language: str | None = None,
        *,
        latency: int | None = None,
        att_context_size: Sequence[int] | None = None,
        sample_rate: int = SAMPLE_RATE,
        encoding: str | None = None,
        num_channels: int = 1,
        channel: Channels = "mix",
        chunks_per_call: int = 1,
        endpoint: bool | Endpoint = False,
        itn: Itn | None = None,
        **decoding: Unpack[DecodingOptions],
    ) -> Session:
        """Open a live session.

        Args:
            language: a name of the prompt table; None is the model's default.
            latency: algorithmic latency in milliseconds, (right + 1) * 80; None is the model's default.
            att_context_size: (left, right) in encoder frames, instead of ``latency``.
            sample_rate: of the audio that will be fed, in Hz; it is resampled to 16 kHz.
            encoding: of raw bytes: "s16le", "f32le", "mulaw" or "alaw"; None if arrays will be fed.
            num_channels: interleaved channels of the audio.
            channel: "mix", or the number of the one to transcribe, from 0.
            chunks_per_call: chunks to gather before the encoder runs: more is faster and later.
            endpoint: look for the ends of utterances; True takes the default rules of `Endpoint`.
            itn: rewrites the text of every complete utterance, given its language; the text of events stays.
            decoding: ``boost``, ``boost_score``, ``beam`` and ``confidence``, see `DecodingOptions`.

        Raises:
            LanguageError: on an unknown language.
            ContextError: on a context that the model can't run with.
            AudioError: on an unknown encoding, rate or channel.
            SessionError: if how to decode makes no sense.
        """
        prompt_id = self.config.prompt_id(language)
        for name in decoding:
            if name not in DecodingOptions.__annotations__:
                raise TypeError(f"stream() and transcribe() have no argument {name!r}.")
        if itn is not None and not callable(itn):  # said now, not when the first utterance ends
            raise TypeError(f"itn is {itn!r}; a function of text and language was expected.")
        decoder = decoder_for(self.engine.runtime, **decoding)
        rules = Endpoint() if endpoint is True else endpoint or None
        if not isinstance(rules, Endpoint | None):
            raise TypeError(f"endpoint is {endpoint!r}; True, False or an Endpoint was expected.")
        segmented = rules is not None or itn is not None
        stream = self.engine.open(prompt_id, self.att_context(latency, att_context_size), decoder)
        try:
            return Session(
                self.engine,
                stream,
                language=language if language is not None else self.config.default_language,
                sample_rate=sample_rate,
                encoding=encoding,
                num_channels=num_channels,
                channel=channel,
                chunks_per_call=chunks_per_call,
                segmenter=Segmenter(self.tokenizer, rules, itn) if segmented else None,
            )
        except BaseException:
            self.engine.close(stream)
            raise

    def transcribe(
        self,
        source: str | Path | BinaryIO | NDArray[np.generic],
        language: str | None = None,
        *,
        latency: int | None = None,
        att_context_size: Sequence[int] | None = None,
        sample_rate: int = SAMPLE_RATE,
        channels: Channels = "mix",
        chunks_per_call: int | None = None,
        progress: Progress | None = None,
        endpoint: bool | Endpoint = False,
        itn: Itn | None = None,
        **decoding: Unpack[DecodingOptions],
    ) -> Transcript:
        """Transcribe a recording of any length at constant memory, by the engine that also runs live.

        Args:
            source: a file, or samples [N] or [N, channels].
            language: see `stream`.
            latency: see `stream`; it shapes the result as it would live.
            att_context_size: see `stream`.
            sample_rate: of ``source`` if it is an array; a file says its own.
            channels: "mix", or the number of one channel, from 0.
            chunks_per_call: chunks per encoder call; None is about nine seconds' worth. It does not change
                the result.
            progress: called after every block with the seconds done and, if known, in all.
            endpoint: see `stream`; so are ``itn`` and ``decoding``.
            itn: see `stream`.
            decoding: see `stream`.

        Raises:
            AudioError: if the audio can't be read; see also `stream`.
        """
        context = self.att_context(latency, att_context_size)
        self.config.prompt_id(language)  # a wrong language is reported before the file is opened
        if chunks_per_call is None:
            limit = min(self.engine.runtime.max_frames or FRAMES_PER_FILE_CALL, FRAMES_PER_FILE_CALL)
            chunks_per_call = max(1, limit // self.engine.chunk_frames(context))
        with (
            _Recording.open(source, sample_rate) as recording,
            self.stream(
                language,
                att_context_size=context,
                sample_rate=recording.sample_rate,
                num_channels=recording.num_channels,
                channel=channels,
                chunks_per_call=chunks_per_call,
                endpoint=endpoint,
                itn=itn,
                **decoding,
            ) as session,
        ):
            done = 0
            for block in recording.blocks:
                session.feed(block)
                done += len(block)
                if progress is not None:
                    progress(done / recording.sample_rate, recording.duration)
            if not done:
                raise AudioError("There is no audio: the array has no samples.")
            session.finish()
            return session.transcript()


@dataclass(frozen=True)
class _Recording:
    """Blocks [N, channels] of a file or an array, and what is known about it."""

    blocks: Iterator[NDArray[np.generic]]
    sample_rate: int
    num_channels: int
    duration: float | None

    @classmethod
    @contextmanager
    def open(
        cls, source: str | Path | BinaryIO | NDArray[np.generic], sample_rate: int
    ) -> Iterator[_Recording]:
        if not isinstance(source, str | Path | np.ndarray) and not hasattr(source, "read"):
            raise TypeError(
                f"A path, an open binary file or a numpy array was expected, not {type(source).__name__}."
            )
        if isinstance(source, np.ndarray):
            sample_rate = check_rate(sample_rate, "source sample rate")
            samples = as_float32(source)
            samples = samples[:, None] if samples.ndim == 1 else samples
            size = round(_BLOCK_SECONDS * sample_rate)
            parts = (samples[start : start + size] for start in range(0, len(samples), size))
            yield cls(parts, sample_rate, samples.shape[1], len(samples) / sample_rate)
            return
        with AudioFile(source) as file:
            blocks = file.blocks(round(_BLOCK_SECONDS * file.sample_rate))
            try:
                yield cls(blocks, file.sample_rate, file.channels, file.duration)
            except AudioError as error:
                if str(error).startswith(file.name):
                    raise
                raise AudioError(f"{file.name}: {error}") from None
