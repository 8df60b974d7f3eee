"""Words with times, from tokens.

A pure function of the tokens, so that the times do not depend on how the audio was cut. Punctuation takes no
time: it goes with a word and never moves its start or end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from nemostream.config import FRAME_MS
from nemostream.results import Token, Word
from nemostream.text.detokenizer import Detokenizer
from nemostream.text.scripts import is_opening, is_punctuation, may_split
from nemostream.text.tokenizer import SPACE, Tokenizer


@dataclass(frozen=True, slots=True)
class _Character:
    """One character of the text, with the tokens that it came from."""

    text: str
    token: int
    """Counts the tokens that gave text, so that characters of one token are known as such."""
    first: int
    """Frame of the first token that it came from: of the first of its bytes, where it came as bytes."""
    last: int

    @property
    def spoken(self) -> bool:
        return not (self.text.isspace() or is_punctuation(self.text))


def words_of(tokens: Sequence[Token], tokenizer: Tokenizer) -> tuple[Word, ...]:
    """Return the words of a stream's tokens, which are in the order of their frames.

    A word starts on the frame of its first token that is not punctuation, and ends one frame (80 ms) after
    its last such token, or where the next word starts if that is earlier. Words that start on one frame
    share its 80 ms evenly. Thus ``start < end <= next start``, always.

    Punctuation belongs to the word before it, and opening quotes and brackets to the word after it. In
    scripts without spaces (Han, kana, Thai, Lao, Khmer, Myanmar) every token is a word of its own, save for
    one that only continues a syllable. A word's text is what stands in ``tokenizer.decode``: all words in
    their order, spaces aside, are the whole text. Text that is punctuation only is one word.

    Raises:
        CheckpointError: if a token id is outside the vocabulary.
    """
    characters = list(_characters(tokens, tokenizer))
    spans = _spans(characters)
    frames = [_frames(characters[begin:end]) for begin, end in spans]
    words = []
    starts = _starts([first for first, _ in frames])
    for index, (begin, end) in enumerate(spans):
        text = "".join(character.text for character in characters[begin:end]).strip()
        stop = (frames[index][1] + 1) * FRAME_MS
        if index + 1 < len(spans):
            stop = min(stop, starts[index + 1])
        confidence = _confidence(tokens[characters[begin].token : characters[end - 1].token + 1])
        words.append(Word(text, starts[index] / 1000, stop / 1000, confidence))
    return tuple(words)


class GrowingWords:
    """`words_of` for tokens that come bit by bit, without looking at all of them again every time.

    What lies before a certain end of a word is never looked at again: a letter or digit, and on a later frame
    a token that begins with a space and a letter or digit.

    Args:
        tokenizer: the pieces.
        origin: seconds that are added to all times.
    """

    def __init__(self, tokenizer: Tokenizer, origin: float = 0.0) -> None:
        self._tokenizer, self._origin = tokenizer, origin
        self._settled: tuple[Word, ...] = ()
        self._tokens: list[Token] = []  # that may still belong to a word that grows

    def add(self, tokens: Sequence[Token]) -> tuple[Word, ...]:
        """Take the next tokens and return the words of all of them, as `words_of` does."""
        known = len(self._tokens)
        self._tokens += tokens
        for index in range(len(self._tokens) - 1, max(known, 1) - 1, -1):
            if _is_certain_end(self._tokens[index - 1], self._tokens[index]):
                self._settled += self._words(self._tokens[:index])
                del self._tokens[:index]
                break
        return self._settled + self._words(self._tokens)

    def _words(self, tokens: Sequence[Token]) -> tuple[Word, ...]:
        words = words_of(tokens, self._tokenizer)
        return tuple(
            replace(word, start=word.start + self._origin, end=word.end + self._origin) for word in words
        )


def _is_certain_end(before: Token, after: Token) -> bool:
    return (
        before.frame < after.frame
        and before.piece[-1].isalnum()
        and after.piece.startswith(SPACE)
        and after.piece[1:2].isalnum()
    )


def _confidence(tokens: Sequence[Token]) -> float | None:
    """Geometric mean of the probabilities of a word's tokens, if they are known."""
    known = [token.log_prob for token in tokens if token.log_prob is not None]
    return math.exp(sum(known) / len(known)) if known else None


def _characters(tokens: Sequence[Token], tokenizer: Tokenizer) -> Iterator[_Character]:
    detokenizer = Detokenizer(tokenizer)
    first: int | None = None  # frame of the first byte of a character that is not complete
    last = 0
    for index, token in enumerate(tokens):
        added = detokenizer.push(token.id)
        start = token.frame if first is None else first
        for character in added:
            yield _Character(character, index, start, token.frame)
        # a byte may also end a broken character and begin the next one
        first = (token.frame if added else start) if detokenizer.incomplete else None
        last = token.frame
    for character in detokenizer.finish():
        yield _Character(character, len(tokens), last if first is None else first, last)


def _spans(characters: Sequence[_Character]) -> list[tuple[int, int]]:
    """Return (begin, end) of every word, all characters being in one of them."""
    if all(character.text.isspace() for character in characters):
        return []
    spoken = [index for index, character in enumerate(characters) if character.spoken]
    cuts = [0]
    for left, right in pairwise(spoken):
        cut = _cut(characters, left, right)
        if cut is not None:
            cuts.append(cut)
    return list(zip(cuts, [*cuts[1:], len(characters)], strict=True))


def _cut(characters: Sequence[_Character], left: int, right: int) -> int | None:
    """Return where the word of ``right`` begins, if it is not the word of ``left``.

    Only punctuation and spaces stand between these two spoken characters.
    """
    between = range(left + 1, right)
    spaces = [index for index in between if characters[index].text.isspace()]
    if spaces:
        # a mark after a space and before none opens; one between two spaces, as in French, needs its category
        for space in spaces:
            if is_opening(characters[space + 1].text):
                return space + 1
        return spaces[-1] + 1
    before, after = characters[left], characters[right]
    if before.token == after.token or not may_split(before.text, after.text):
        return None
    return next((index for index in between if is_opening(characters[index].text)), right)


def _frames(characters: Sequence[_Character]) -> tuple[int, int]:
    """Return the first and the last frame of a word: of what is spoken, if anything is."""
    timed = [character for character in characters if character.spoken] or [
        character for character in characters if not character.text.isspace()
    ]
    return timed[0].first, timed[-1].last


def _starts(frames: Sequence[int]) -> list[int]:
    """Return the start of every word in ms; words on one frame share it."""
    starts: list[int] = []
    for frame, group in groupby(frames):
        sharing = len(list(group))
        starts.extend(frame * FRAME_MS + place * FRAME_MS // sharing for place in range(sharing))
    return starts
