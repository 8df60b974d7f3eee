"""From tokens to text: pieces, languages and their tags."""

from nemostream.text.languages import PUBLISHED_PROMPTS, language_of_tag
from nemostream.text.tokenizer import Tokenizer

__all__ = ["PUBLISHED_PROMPTS", "Tokenizer", "language_of_tag"]
