"""Segments for subtitles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nemostream.results import Transcript, Word
from nemostream.text.scripts import width
from nemostream.text.segments import segments_of

WORD_TEXTS = st.sampled_from(
    ["a", "so,", "word", "Halt!", "end.", "你好", "世界。", "สวัสดี", "(well)", "x" * 50, "長" * 60, "« oui »"]
)


def transcript(words: Sequence[Word], joiner: str = " ") -> Transcript:
    text = joiner.join(word.text for word in words)
    return Transcript(text, "en-US", words[-1].end if words else 0.0, (), tuple(words))


def regular(texts: Sequence[str], seconds: float = 0.3) -> list[Word]:
    """Words of equal length, one right after the other."""
    return [Word(text, index * seconds, (index + 1) * seconds) for index, text in enumerate(texts)]


@st.composite
def any_transcript(draw: st.DrawFn) -> Transcript:
    words, now = [], 0.0
    for text in draw(st.lists(WORD_TEXTS, max_size=40)):
        start = now + draw(st.sampled_from([0.0, 0.08, 0.4, 0.7, 3.0]))
        now = start + draw(st.sampled_from([0.02, 0.08, 0.5, 2.0, 9.0]))
        words.append(Word(text, start, now))
    return transcript(words, draw(st.sampled_from([" ", ""])))


@given(any_transcript())
def test_limits_hold_and_nothing_is_lost(spoken: Transcript) -> None:
    segments = segments_of(spoken)
    for segment in segments:
        assert 1 <= len(segment.lines) <= 2
        assert all(0 < width(line) <= 42 and line == line.strip() for line in segment.lines)
        assert 0 < segment.end - segment.start <= 7.0 + 1e-9
        assert segment.text in ("".join(segment.lines), " ".join(segment.lines))
    assert all(before.end <= after.start + 1e-9 for before, after in pairwise(segments))
    assert "".join("".join(segment.text.split()) for segment in segments) == "".join(spoken.text.split())


def test_no_words_are_no_segments() -> None:
    assert segments_of(transcript([])) == ()


def test_sentences_and_pauses_end_segments() -> None:
    words = [
        Word("One", 0.0, 0.3),
        Word('two."', 0.3, 0.5),
        Word("Three", 0.6, 0.8),
        Word("four", 1.5, 1.9),
        Word("five", 2.5, 2.8),
    ]
    assert [segment.text for segment in segments_of(transcript(words))] == ['One two."', "Three", "four five"]


def test_two_lines_are_about_equal() -> None:
    text = "It was a bright cold day in April and the clocks were striking"
    words = regular(text.split())
    (segment,) = segments_of(transcript(words))
    assert segment.lines == ("It was a bright cold day in April", "and the clocks were striking")


def test_long_sentences_are_cut_rather_at_a_comma() -> None:
    words = regular(("word " * 9 + "comma, " + "word " * 14).split(), 0.2)
    first, second = segments_of(transcript(words))
    assert first.text.endswith("comma,")
    assert second.start == first.end


def test_scripts_without_spaces_stay_without_and_count_double() -> None:
    words = regular(["你好", "世界"] * 10, 0.1)
    (segment,) = segments_of(transcript(words, ""))
    assert segment.text == "你好世界" * 10
    assert segment.lines == ("你好世界" * 5, "你好世界" * 5)  # 20 characters, 40 columns


def test_hours_without_punctuation_are_cut_too() -> None:
    chance = random.Random(0)
    words = regular(["w" * chance.randint(1, 12) for _ in range(10_000)])
    segments = segments_of(transcript(words))
    assert max(segment.end - segment.start for segment in segments) <= 7.0 + 1e-6
    assert min(len(segment.text) for segment in segments) > 10
