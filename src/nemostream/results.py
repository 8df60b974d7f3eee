"""What recognition gives back: tokens, words, events of a live stream, and whole transcripts."""

from __future__ import annotations

from dataclasses import dataclass

from nemostream.config import FRAME_MS


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token.

    Attributes:
        id: token id.
        piece: its SentencePiece piece.
        frame: encoder frame on which it was emitted, counted from the start of the stream.
        log_prob: natural logarithm of its probability, without what boosted phrases add; None if the stream
            does not keep it.
    """

    id: int
    piece: str
    frame: int
    log_prob: float | None = None

    @property
    def time(self) -> float:
        """Seconds from the start of the audio: frame * 80 ms."""
        return self.frame * FRAME_MS / 1000


@dataclass(frozen=True, slots=True)
class Word:
    """A word, with its punctuation, from ``start`` to ``end`` in seconds.

    ``confidence`` is the geometric mean of its tokens' probabilities, or None if the stream does not keep
    them.
    """

    text: str
    start: float
    end: float
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Utterance:
    """What was said between two pauses.

    Attributes:
        text: its text, as the stream's ``itn`` hook rewrote it if there is one.
        start: seconds, of its first word.
        end: seconds, of its last word.
        language: that the model named in it, or else the one that the stream was told, or None.
        words: its words, as they were recognised.
    """

    text: str
    start: float
    end: float
    language: str | None
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A whole text that a beam search found, and its score: a log-probability plus what phrases add."""

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Event:
    """News from a live stream.

    Attributes:
        text: text to append to what earlier events gave; never changed afterwards.
        tokens: the tokens emitted since the last event; language tags are among them.
        language: the language that the model named by now, such as "en-US", or None.
        final: True for the last event of a stream.
        utterance: the utterance that ends with this event, if one does and the stream looks for them.
    """

    text: str
    tokens: tuple[Token, ...]
    language: str | None
    final: bool = False
    utterance: Utterance | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """All that was recognised in one recording or one channel of it.

    Attributes:
        text: the whole text.
        language: the language that the model named last, or the one it was told, or None.
        duration: seconds of audio.
        tokens: every token with its encoder frame.
        words: every word with its times.
        utterances: what was said between pauses, if the stream looked for them.
        alternatives: what a beam search found, the best first, which is ``text``.
    """

    text: str
    language: str | None
    duration: float
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    utterances: tuple[Utterance, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
