"""`Segmenter`: cuts a stream's tokens into utterances."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from nemostream.audio.quiet import QuietByLevel, QuietByVoice, QuietDetector
from nemostream.decoding.endpoint import Endpoint, Endpointer
from nemostream.results import Token, Utterance
from nemostream.runtimes.protocol import Float32
from nemostream.text.scripts import is_punctuation, is_unspaced
from nemostream.text.tokenizer import CONTROL_PIECES, SPACE, Tokenizer
from nemostream.text.words import words_of

Itn = Callable[[str, str | None], str]  # text and language -> text as it is to be written


class Segmenter:
    """Cuts the tokens of one stream into utterances, and makes these.

    Args:
        tokenizer: the pieces.
        rules: when an utterance ends; None means with the stream only.
        itn: rewrites the text of an utterance that is complete, such as "twenty one" to "21".
    """

    def __init__(self, tokenizer: Tokenizer, rules: Endpoint | None, itn: Itn | None) -> None:
        self._tokenizer, self._itn = tokenizer, itn
        self._endpointer = Endpointer(rules) if rules is not None else None
        self._detector: QuietDetector | None = None
        if rules is not None:
            self._detector = QuietByVoice() if rules.vad else QuietByLevel()
        # of frames that are not decoded yet. A frame is centred on its start, so that the sound that it can
        # be sure of is that of the 80 ms before; the first frame has none
        self._quiet: deque[bool] = deque([False])
        self._tokens: list[Token] = []  # of the current utterance
        self._text: list[str] = []
        self.utterances: list[Utterance] = []

    def listen(self, samples: Float32) -> None:
        """Take the 16 kHz samples that go to the encoder as well."""
        if self._detector is not None:
            self._quiet.extend(self._detector.feed(samples))

    def cut(self, tokens: Sequence[Token], frames: int) -> Iterator[tuple[list[Token], bool]]:
        """Yield the tokens in parts, each with whether an utterance ends with it.

        Args:
            tokens: the new ones, in order.
            frames: encoder frames from the stream's start that have been decoded.
        """
        part: list[Token] = []
        waiting = deque(tokens)
        while self._endpointer is not None and self._endpointer.frame < frames:
            frame = self._endpointer.frame
            here = []
            while waiting and waiting[0].frame <= frame:
                here.append(waiting.popleft())
            spoken = [token for token in here if self._spoken(token)]
            quiet = self._quiet.popleft() if self._quiet else False  # a stream's last, partial frame
            starts = bool(spoken) and self._starts_word(spoken[0])
            if self._endpointer.step(quiet, tokens=bool(spoken), new_word=starts):
                yield part, True
                part = []
            part += here
        part += waiting
        yield part, False

    def add(self, tokens: Sequence[Token], text: str) -> None:
        """Add tokens, and the text that they gave, to the current utterance."""
        self._tokens += tokens
        self._text.append(text)

    def end(self, language: str | None) -> Utterance | None:
        """End the current utterance and return it; None if nothing was said in it.

        Args:
            language: of the stream, for an utterance in which the model names none.
        """
        text, tokens = "".join(self._text).strip(), tuple(self._tokens)
        self._tokens, self._text = [], []
        words = words_of(tokens, self._tokenizer)
        if not text or not words:
            return None
        tags = self._tokenizer.language_tags
        named = [tags[token.id] for token in tokens if token.id in tags]
        spoken = named[-1] if named else language
        if self._itn is not None:
            text = self._itn(text, spoken)
        utterance = Utterance(text, words[0].start, words[-1].end, spoken, words)
        self.utterances.append(utterance)
        return utterance

    def _spoken(self, token: Token) -> bool:
        bare = token.piece.replace(SPACE, "")
        if token.id in self._tokenizer.language_tags or token.piece in CONTROL_PIECES:
            return False
        return any(not is_punctuation(character) for character in bare)

    @staticmethod
    def _starts_word(token: Token) -> bool:
        return token.piece.startswith(SPACE) or is_unspaced(token.piece[0])
