"""`Detokenizer`: `Tokenizer.decode`, one token at a time, with text that is only ever appended to."""

from __future__ import annotations

import codecs
import re

from nemostream.errors import CheckpointError
from nemostream.text.tokenizer import CONTROL_PIECES, SPACE, Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer:
    """Turns the tokens of one stream into text as they come.

    What `push` and `finish` return, joined, is ``tokenizer.decode`` of all ids. Two things are therefore
    held back until they are certain: bytes of a character that is not complete yet, and spaces, because the
    language tag that may follow takes them away.

    Args:
        tokenizer: the pieces.

    Attributes:
        language: what the last language tag said, such as "en-US", or None before the first one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.language: str | None = None
        self._tokenizer = tokenizer
        self._started = False  # some text was returned: before that, spaces are dropped
        self._spaces = ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def incomplete(self) -> bool:
        """True while the first bytes of a character wait for the rest of it."""
        return bool(self._utf8.getstate()[0])

    def push(self, token_id: int) -> str:
        """Return the text that the token adds; empty for a tag, a control piece or half a character.

        Raises:
            CheckpointError: if the id is outside the vocabulary.
        """
        pieces = self._tokenizer.pieces
        if not 0 <= token_id < len(pieces):
            raise CheckpointError(
                f"Token id {token_id} is outside the {len(pieces)} pieces of this tokenizer; "
                "does the tokenizer belong to this model?"
            )
        piece = pieces[token_id]
        if byte := _BYTE.fullmatch(piece):
            return self._append(self._utf8.decode(bytes([int(byte.group(1), 16)])))
        added = self._append(self._end_of_bytes())
        if token_id in self._tokenizer.language_tags:
            self.language = self._tokenizer.language_tags[token_id]
            self._spaces = ""
        elif piece not in CONTROL_PIECES:
            added += self._append(piece.replace(SPACE, " "))
        return added

    def finish(self) -> str:
        """Return what was held back, and be ready for a new text; `language` stays."""
        added = self._append(self._end_of_bytes()) + self._spaces
        self._started, self._spaces = False, ""
        return added

    def _end_of_bytes(self) -> str:
        """Return U+FFFD for each part of a character that will not be completed any more."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest

    def _append(self, text: str) -> str:
        """Return ``text`` after the spaces that were held back, and hold back its own last ones."""
        if not self._started:
            text = text.lstrip(" ")
        visible = text.rstrip(" ")
        if not visible:
            self._spaces += text
            return ""
        added = self._spaces + visible
        self._started, self._spaces = True, text[len(visible) :]
        return added
