"""Detokenizing token by token, against `Tokenizer.decode` of all tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemostream.errors import CheckpointError
from nemostream.text.detokenizer import Detokenizer
from tests.text.pieces import PIECES, TOKENIZER, S

ANY_IDS = st.lists(st.integers(0, len(PIECES) - 1), max_size=30)


def pushed(*pieces: str) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER)
    return [detokenizer.push(PIECES.index(piece)) for piece in pieces] + [detokenizer.finish()]


@given(ANY_IDS)
def test_all_pushes_joined_are_the_decoded_text(ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    text = "".join(detokenizer.push(index) for index in ids) + detokenizer.finish()
    assert text == TOKENIZER.decode(ids)


@given(ANY_IDS, ANY_IDS)
def test_a_finished_detokenizer_starts_a_new_text(first: list[int], second: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    for index in first:
        detokenizer.push(index)
    detokenizer.finish()
    text = "".join(detokenizer.push(index) for index in second) + detokenizer.finish()
    assert text == TOKENIZER.decode(second)


def test_the_space_before_the_first_word_goes_and_later_ones_stay() -> None:
    assert pushed(f"{S}the", f"{S}cat", "s") == ["the", " cat", "s", ""]


def test_bytes_wait_until_their_character_is_complete() -> None:
    assert pushed("<0xE2>", "<0x82>", "<0xAC>", "s") == ["", "", "€", "s", ""]


def test_a_character_that_is_never_completed_is_replaced() -> None:
    assert pushed(f"{S}a", "<0xE2>", "s") == ["a", "", "\ufffds", ""]
    assert pushed(f"{S}a", "<0xE2>") == ["a", "", "\ufffd"]


def test_tags_and_control_pieces_add_nothing() -> None:
    assert pushed(f"{S}the", ".", "<en-US>", "</s>", f"{S}a") == ["the", ".", "", "", " a", ""]


def test_a_space_before_a_tag_is_neither_lost_nor_doubled() -> None:
    assert "".join(pushed(f"{S}the", S, "<en-US>", f"{S}cat")) == "the cat"
    assert "".join(pushed("<en-US>", f"{S}the")) == "the"


def test_language_is_the_last_tag_and_outlives_finish() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.language is None
    for piece, language in (("<en-US>", "en-US"), (f"{S}a", "en-US"), ("<de-DE>", "de-DE")):
        detokenizer.push(PIECES.index(piece))
        assert detokenizer.language == language
    detokenizer.finish()
    assert detokenizer.language == "de-DE"


@pytest.mark.parametrize("index", [-1, len(PIECES)])
def test_an_id_outside_the_vocabulary_is_an_error(index: int) -> None:
    with pytest.raises(CheckpointError, match=r"outside the \d+ pieces"):
        Detokenizer(TOKENIZER).push(index)
