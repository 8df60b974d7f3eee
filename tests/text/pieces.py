"""A small vocabulary with everything that makes detokenizing hard, and tokens of it."""

from __future__ import annotations

from collections.abc import Sequence

from nemostream.results import Token
from nemostream.text.tokenizer import Tokenizer

S = "\u2581"
PIECES = (
    "<unk>",
    "</s>",
    "<en-US>",
    "<de-DE>",
    S,
    f"{S}the",
    f"{S}cat",
    "s",
    f"{S}a",
    ".",
    ",",
    "?",
    "'",
    "-",
    '"',
    f'{S}"',
    f"{S}(",
    ")",
    "«",
    f"{S}«",
    f"{S}»",
    f"{S}!",
    "¿",
    "你好",
    "世界",
    "。",
    "，",
    "「",
    "か",
    "ー",
    "ん",
    "สวัส",
    "เ",
    "ดี",
    "ะ",
    "%",
    f"{S}9",
    *(f"<0x{byte:02X}>" for byte in (0x20, 0x41, 0xE2, 0x82, 0xAC, 0xC3, 0xA9, 0xFF, 0xF0, 0x9F, 0x98, 0x80)),
)
TOKENIZER = Tokenizer(PIECES)


def tokens(*items: str | tuple[str, int]) -> list[Token]:
    """Tokens of these pieces, each on its own frame (0, 1, 2 ...) unless one is given beside it."""
    made = []
    for index, item in enumerate(items):
        piece, frame = item if isinstance(item, tuple) else (item, index)
        made.append(Token(PIECES.index(piece), piece, frame))
    return made


def at(frames: Sequence[int], ids: Sequence[int]) -> list[Token]:
    """Tokens of these ids on these frames, sorted."""
    pairs = zip(sorted(frames), ids, strict=False)
    return [Token(index, PIECES[index], frame) for frame, index in pairs]
