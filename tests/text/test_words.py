"""Words and their times."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemostream.results import Token, Word
from nemostream.text.tokenizer import Tokenizer
from nemostream.text.words import GrowingWords, words_of
from tests.text.pieces import PIECES, TOKENIZER, S, at, tokens

TOKENS = st.integers(0, 25).flatmap(
    lambda count: st.builds(
        at,
        st.lists(st.integers(0, 12), min_size=count, max_size=count),
        st.lists(st.integers(0, len(PIECES) - 1), min_size=count, max_size=count),
    )
)


def texts(*items: str | tuple[str, int]) -> list[str]:
    return [word.text for word in words_of(tokens(*items), TOKENIZER)]


def times(*items: str | tuple[str, int]) -> list[tuple[str, float, float]]:
    return [(word.text, word.start, word.end) for word in words_of(tokens(*items), TOKENIZER)]


@given(TOKENS)
def test_times_are_positive_monotone_and_do_not_overlap(stream: list[Token]) -> None:
    words = words_of(stream, TOKENIZER)
    assert all(word.start < word.end for word in words)
    assert all(before.end <= after.start for before, after in pairwise(words))
    if words:
        assert words[0].start >= stream[0].time
        assert words[-1].end <= stream[-1].time + 0.08 + 1e-9


@given(TOKENS)
def test_the_words_together_are_the_whole_text(stream: list[Token]) -> None:
    text = TOKENIZER.decode([token.id for token in stream])
    position = 0
    for word in words_of(stream, TOKENIZER):
        assert word.text == word.text.strip() != ""
        between, position = text.index(word.text, position) - position, text.index(word.text, position)
        assert text[position - between : position].isspace() or between == 0
        position += len(word.text)
    assert text[position:].strip() == ""


@given(TOKENS, st.data())
def test_words_of_tokens_that_come_bit_by_bit_are_those_of_all(
    stream: list[Token], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    growing = GrowingWords(TOKENIZER)
    for begin, end in pairwise([0, *cuts, len(stream)]):
        assert growing.add(stream[begin:end]) == words_of(stream[:end], TOKENIZER)


def test_settled_words_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(part: list[Token], tokenizer: Tokenizer) -> tuple[Word, ...]:
        seen.append(len(part))
        return words_of(part, tokenizer)

    monkeypatch.setattr("nemostream.text.words.words_of", counted)
    growing = GrowingWords(TOKENIZER, origin=10.0)
    for number in range(300):
        words = growing.add(
            tokens((f"{S}the", 3 * number), (f"{S}cat", 3 * number + 1), ("s", 3 * number + 2))
        )
    assert len(words) == 600
    assert words[0].start == 10.0
    assert words[-1].end == pytest.approx(10.0 + 900 * 0.08)
    assert max(seen) <= 5


def test_a_word_goes_from_its_first_token_to_80_ms_after_its_last() -> None:
    assert times((f"{S}the", 2), (f"{S}cat", 5), ("s", 7)) == [("the", 0.16, 0.24), ("cats", 0.4, 0.64)]


def test_a_word_ends_where_the_next_one_starts_at_the_latest() -> None:
    assert times((f"{S}the", 2), ("s", 3), (f"{S}a", 3)) == [("thes", 0.16, 0.24), ("a", 0.24, 0.32)]


def test_words_on_one_frame_share_it() -> None:
    assert times((f"{S}the", 1), (f"{S}cat", 1)) == [("the", 0.08, 0.12), ("cat", 0.12, 0.16)]


def test_punctuation_joins_the_word_before_it_and_does_not_stretch_it() -> None:
    assert times((f"{S}cat", 1), (",", 20), (f"{S}a", 30), (".", 99)) == [
        ("cat,", 0.08, 0.16),
        ("a.", 2.4, 2.48),
    ]


def test_opening_marks_join_the_next_word_without_its_time() -> None:
    assert times((f"{S}the", 0), (f"{S}(", 2), ("s", 5), (")", 8)) == [("the", 0.0, 0.08), ("(s)", 0.4, 0.48)]


def test_marks_go_to_the_right_word() -> None:
    assert texts(f"{S}the", ",", f'{S}"', "s", ".", '"', f"{S}a") == ["the,", '"s."', "a"]  # English
    assert texts(f"{S}the", f"{S}«", f"{S}cat", f"{S}»", f"{S}!", f"{S}a") == [
        "the",
        "« cat » !",
        "a",
    ]  # French
    assert texts(f"{S}the", f"{S}»", "s", "«", f"{S}a") == ["the", "»s«", "a"]  # German
    assert texts(f"{S}the", S, "¿", "s", "?", f"{S}a") == ["the", "¿s?", "a"]  # Spanish
    assert texts("你好", "，", "「", "世界", "。", "你好") == ["你好，", "「世界。", "你好"]


def test_marks_inside_a_word_do_not_split_it() -> None:
    assert texts(f"{S}cat", "'", "s") == ["cat's"]
    assert texts(f"{S}cat", "-", "s", f"{S}9", "%") == ["cat-s", "9%"]
    assert times((f"{S}9", 1), ("%", 4)) == [("9%", 0.08, 0.4)]  # a percent sign is spoken


def test_punctuation_alone_is_a_word_and_before_the_first_word_joins_it() -> None:
    assert times((".", 3)) == [(".", 0.24, 0.32)]
    assert texts(".", f"{S}the") == [". the"]


def test_tags_and_control_pieces_give_no_word_and_no_time() -> None:
    assert times(("<en-US>", 0), (f"{S}the", 2), ("</s>", 5), ("<de-DE>", 9)) == [("the", 0.16, 0.24)]
    assert words_of(tokens("<en-US>"), TOKENIZER) == ()
    assert words_of([], TOKENIZER) == ()


def test_scripts_without_spaces_have_a_word_per_token() -> None:
    assert texts("你好", "世界", "。", f"{S}the", "你好") == ["你好", "世界。", "the", "你好"]


def test_a_token_that_continues_a_syllable_joins_it() -> None:
    assert texts("か", "ー", "ん") == ["かー", "ん"]
    assert texts("สวัส", "เ", "ดี", "ะ") == ["สวัส", "เดีะ"]


def test_a_character_of_several_byte_tokens_starts_with_its_first_byte() -> None:
    assert times((f"{S}a", 0), (S, 1), ("<0xE2>", 2), ("<0x82>", 3), ("<0xAC>", 4)) == [
        ("a", 0.0, 0.08),
        ("€", 0.16, 0.4),
    ]


@pytest.mark.parametrize("count", [1, 5, 9])
def test_what_comes_later_changes_only_the_last_word(count: int) -> None:
    stream = tokens(f"{S}the", f"{S}cat", "s", ",", f"{S}a", f"{S}9", "%", f"{S}the", ".")
    whole, part = words_of(stream, TOKENIZER), words_of(stream[:count], TOKENIZER)
    assert part[:-1] == whole[: len(part) - 1]


def test_an_hour_of_words_takes_no_quadratic_time() -> None:
    stream = [Token(PIECES.index(f"{S}the"), f"{S}the", frame) for frame in range(45_000)]
    assert len(words_of(stream, TOKENIZER)) == 45_000
