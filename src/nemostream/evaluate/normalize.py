"""Normalisers: what counts as the same text before errors are counted.

``simple`` is that of the public comparisons of Nemotron ports: NFKC, lower case, no punctuation or symbols,
no language tags. ``whisper`` is OpenAI's, by the package whisper-normalizer: for English it also spells
numbers, contractions and British words one way, for other languages it strips marks. ``none`` compares as
it stands.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any, Literal, get_args

from nemostream.errors import BackendError

NormalizerName = Literal["simple", "whisper", "none"]
NORMALIZERS: tuple[NormalizerName, ...] = get_args(NormalizerName)
Normalizer = Callable[[str, str], str]  # text, language -> text

CHARACTER_LANGUAGES = frozenset({"ja", "zh", "ko", "th"})  # scored by CER: words are not a matter of spaces
_TAG = re.compile(r"<[a-z]{2,3}-[A-Za-z]{2}>")


def language_code(lang: str) -> str:
    """Return ``en`` of ``en-US``."""
    return re.split(r"[-_]", lang.lower(), maxsplit=1)[0]


def simple(text: str, lang: str = "en") -> str:
    """NFKC, lower case, Unicode punctuation and symbols removed, language tags removed, single spaces."""
    text = unicodedata.normalize("NFKC", _TAG.sub(" ", text)).lower()
    return " ".join("".join(c for c in text if unicodedata.category(c)[0] not in "PS").split())


def normalizer(name: NormalizerName) -> Normalizer:
    """Return a normaliser by its name.

    Raises:
        BackendError: if "whisper" is asked for and its package is not installed.
    """
    if name == "none":
        return lambda text, lang: " ".join(_TAG.sub(" ", text).split())
    if name == "simple":
        return simple
    english, basic = _whisper()

    def whisper(text: str, lang: str) -> str:
        chosen = english if language_code(lang) == "en" else basic
        return str(chosen(_TAG.sub(" ", text))).strip()

    return whisper


@functools.cache
def _whisper() -> tuple[Any, Any]:
    try:
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer
    except ModuleNotFoundError as error:
        raise BackendError(
            "Whisper's normaliser needs the package whisper-normalizer; run: pip install 'nemostream[eval]'."
        ) from error
    return EnglishTextNormalizer(), BasicTextNormalizer()
