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
    """

    id: int
    piece: str
    frame: int

    @property
    def time(self) -> float:
        """Seconds from the start of the audio: frame * 80 ms."""
        return self.frame * FRAME_MS / 1000


@dataclass(frozen=True, slots=True)
class Word:
    """A word, with its punctuation, from ``start`` to ``end`` in seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Event:
    """News from a live stream.

    Attributes:
        text: text to append to what earlier events gave; never changed afterwards.
        tokens: the tokens emitted since the last event; language tags are among them.
        language: the language that the model named by now, such as "en-US", or None.
        final: True for the last event of a stream.
    """

    text: str
    tokens: tuple[Token, ...]
    language: str | None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Transcript:
    """All that was recognised in one recording or one channel of it.

    Attributes:
        text: the whole text.
        language: the language that the model named last, or the one it was told, or None.
        duration: seconds of audio.
        tokens: every token with its encoder frame.
        words: every word with its times.
    """

    text: str
    language: str | None
    duration: float
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
