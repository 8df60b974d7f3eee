"""Counts, rates, normalisers, punctuation: against jiwer, rapidfuzz and worked examples."""

from __future__ import annotations

import json
from pathlib import Path

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from nemostream.evaluate.errors import Errors, count_errors, unit_of
from nemostream.evaluate.manifest import ManifestError, read_manifest
from nemostream.evaluate.normalize import normalizer, simple
from nemostream.evaluate.punctuation import formatting_scores

texts = st.lists(st.sampled_from(["a", "bb", "c", "über", "7"]), min_size=1, max_size=12).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_rates_equal_jiwers(pairs: list[tuple[str, str]]) -> None:
    said, heard = ([pair[side] for pair in pairs] for side in (0, 1))
    words = Errors.sum([count_errors(a, b, "word") for a, b in pairs])
    assert words.rate == pytest.approx(jiwer.wer(said, heard))
    assert words.total == sum(Levenshtein.distance(a.split(), b.split()) for a, b in pairs)
    bare = [[text.replace(" ", "") for text in side] for side in (said, heard)]
    characters = Errors.sum([count_errors(a, b, "character") for a, b in pairs])
    assert characters.rate == pytest.approx(jiwer.cer(*bare))


def test_rates_equal_jiwers_on_real_texts(shared_dir: Path) -> None:
    utterances = read_manifest(shared_dir / "speech/eval/languages/manifest.jsonl")
    said = [simple(item.text) for item in utterances]
    generator = np.random.default_rng(0)
    heard = [" ".join(w for w in text.split() if generator.random() > 0.2) or "x" for text in said]
    counts = Errors.sum([count_errors(a, b, "word") for a, b in zip(said, heard, strict=True)])
    assert counts.rate == pytest.approx(jiwer.wer(said, heard))
    assert counts.deletions > 0


def test_kinds_of_errors() -> None:
    assert count_errors("a b c", "a x c d", "word") == Errors(insertions=1, substitutions=1, units=3)
    assert count_errors("a b", "", "word") == Errors(deletions=2, units=2)
    assert count_errors("", "a b", "word") == Errors(insertions=2)
    assert Errors(insertions=2).rate == 2.0
    assert count_errors("日本 語", "日本", "character") == Errors(deletions=1, units=3)


def test_units() -> None:
    assert {unit_of(lang) for lang in ("ja-JP", "zh", "ko-KR", "th-TH")} == {"character"}
    assert {unit_of(lang) for lang in ("en-US", "de", "vi-VN")} == {"word"}


def test_normalisers() -> None:
    assert simple("Ｈello, World! <en-US> it's 5 €.") == "hello world its 5"
    assert normalizer("none")(" Hello,  World! <en-US>", "en") == "Hello, World!"
    pytest.importorskip("whisper_normalizer")
    whisper = normalizer("whisper")
    assert whisper("Mr. Smith won't pay twenty-one dollars; colour!", "en-US") == whisper(
        "mister smith will not pay $21 color", "en"
    )
    assert whisper("Grüße, Ölfaß!", "de-DE") == "grüße ölfaß"


def test_punctuation_and_capitals() -> None:
    scores = formatting_scores("Hello, Anna. Is it you?", "hello, Anna is It you?")
    assert (scores["comma"].right, scores["comma"].missing) == (1, 0)
    assert scores["full stop"].recall == 0.0
    assert scores["full stop"].precision is None
    assert scores["question mark"].f1 == 1.0
    capital = scores["capital"]
    assert (capital.right, capital.extra, capital.missing) == (1, 1, 2)
    wrong_word = formatting_scores("Hello, Anna.", "hello Hanna!")
    assert wrong_word["capital"].missing == 1  # "Anna" was not recognised, so it is not judged


def test_manifest(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    line = {"audio_filepath": "a.wav", "text": "hi", "lang": "de"}
    path.write_text(json.dumps(line) + "\n\n" + json.dumps(line | {"audio_filepath": "b.wav"}) + "\n")
    assert [(item.audio, item.lang) for item in read_manifest(path)] == [
        (tmp_path / "a.wav", "de"),
        (tmp_path / "b.wav", "de"),
    ]
    assert len(read_manifest(path, limit=1)) == 1
    for bad, message in (
        ("{}", "line 1"),
        ("", "no utterances"),
        (f"{json.dumps(line)}\n" * 2, "second time"),
    ):
        path.write_text(bad)
        with pytest.raises(ManifestError, match=message):
            read_manifest(path)
