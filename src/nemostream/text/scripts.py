"""What words and subtitles need to know of characters: punctuation, and scripts without spaces."""

from __future__ import annotations

import unicodedata

_SPOKEN = frozenset("%‰&@#§")  # Unicode calls these punctuation, and yet they are read aloud
_OPENING = frozenset("¿¡")  # opening, though Unicode has them among "other punctuation"
_SENTENCE_ENDS = frozenset(".!?…‼⁇⁈⁉。．！？｡؟۔।॥።፧៖។៕՞։")

_UNSPACED = (  # scripts that write no spaces between words: first and last code point
    (0x0E00, 0x0E7F),  # Thai (its baht sign does no harm)
    (0x0E80, 0x0EFF),  # Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x2E80, 0x2FDF),  # Han radicals
    (0x3005, 0x3007),  # iteration mark, closing mark, zero
    (0x3031, 0x30FF),  # kana repeat marks, Hiragana, Katakana
    (0x3100, 0x312F),  # Bopomofo
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x9FFF),  # Han
    (0xAA60, 0xAA7F),  # Myanmar extended
    (0xF900, 0xFAFF),  # Han, compatibility
    (0xFF66, 0xFF9F),  # half-width Katakana
    (0x1B000, 0x1B16F),  # kana supplements
    (0x20000, 0x3FFFF),  # Han, supplementary planes
)
_TIED_TO_PREVIOUS = frozenset("々〻ーｰぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶะาำๅๆະາຳຽໆ")
_TIED_TO_NEXT = frozenset("เแโใไເແໂໃໄ")  # Thai and Lao vowels that are written before their consonant


def is_punctuation(character: str) -> bool:
    """Say whether a character is silent punctuation; symbols and signs such as % are read aloud."""
    return unicodedata.category(character).startswith("P") and character not in _SPOKEN


def is_opening(character: str) -> bool:
    """Say whether a mark opens something, so that it belongs to the word after it."""
    return unicodedata.category(character) in ("Ps", "Pi") or character in _OPENING


def is_unspaced(character: str) -> bool:
    """Say whether a character is of a script that writes no spaces between words."""
    code = ord(character)
    return any(first <= code <= last for first, last in _UNSPACED)


def may_split(before: str, after: str) -> bool:
    """Say whether a word may end between two characters that no space separates.

    It may where one of them is of a script without spaces, and ``after`` begins a new syllable: marks, small
    kana and dependent vowels stay with what they belong to.
    """
    if not (is_unspaced(before) or is_unspaced(after)):
        return False
    if after in _TIED_TO_PREVIOUS or before in _TIED_TO_NEXT:
        return False
    return not unicodedata.category(after).startswith("M")


def ends_sentence(text: str) -> bool:
    """Say whether a word ends a sentence: its last mark, quotes and brackets aside, is a full stop or so."""
    for character in reversed(text):
        if character in _SENTENCE_ENDS:
            return True
        if unicodedata.category(character) not in ("Pe", "Pf", "Pi") and character not in "\"'":
            return False
    return False


def width(text: str) -> int:
    """Return how many columns a text takes; full-width characters, such as Han and kana, take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
