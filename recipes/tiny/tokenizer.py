"""The pieces that a new model speaks."""

from __future__ import annotations

import json
from pathlib import Path

import sentencepiece

LANGUAGE_TAG = "<en-US>"


def make_tokenizer(path: Path, cache: Path, vocab_size: int) -> None:
    """Train BPE pieces on a cache's English texts: with capitals, punctuation and the language tag."""
    texts = []
    for index in sorted(cache.glob("*.jsonl")):
        rows = [json.loads(line) for line in index.open(encoding="utf-8")]
        texts += [row["text"] for row in rows if row["lang"] == "en"][:20000]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(path.with_suffix("")),
        vocab_size=vocab_size,
        model_type="bpe",
        character_coverage=1.0,
        user_defined_symbols=[LANGUAGE_TAG],
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
