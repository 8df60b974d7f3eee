"""Pieces to text, against SentencePiece's own decoder, and every form that pieces are stored in."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemostream.errors import BackendError, CheckpointError
from nemostream.text import Tokenizer

S = "\u2581"
PIECES = (
    "<unk>",
    "<s>",
    "</s>",
    "<pad>",
    "<en-US>",
    f"{S}the",
    f"{S}cat",
    ".",
    S,
    "<0xE2>",
    "<0x82>",
    "<0xAC>",
    "<0x41>",
)
ID = {piece: index for index, piece in enumerate(PIECES)}


def decode(*pieces: str) -> str:
    return Tokenizer(PIECES).decode([ID[piece] for piece in pieces])


@pytest.fixture(scope="session")
def trained() -> bytes:
    """A SentencePiece model with byte fallback and a tag, trained in a moment."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = [
        "the",
        "cat",
        "sat",
        "on",
        "the",
        "mat",
        ".",
        "no",
        "one",
        "was",
        "there",
        ",",
        "and",
        "on",
        "we",
        "went",
        "to",
        "the",
        "sea",
    ]
    rng = np.random.default_rng(0)
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(rng.choice(text, 9)) for _ in range(200)),
        model_writer=stream,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        user_defined_symbols=["<en-US>", "<de-DE>"],
        minloglevel=2,
    )
    return stream.getvalue()


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((), ""),
        ((f"{S}the", f"{S}cat", "."), "the cat."),
        ((S, S, f"{S}the"), "the"),
        ((f"{S}the", S), "the "),
        ((f"{S}the", "<unk>", "<s>", "</s>", "<pad>", "."), "the."),
        ((f"{S}the", ".", S, "<en-US>", f"{S}cat"), "the. cat"),
        (("<en-US>", f"{S}the"), "the"),
        (("<0xE2>", "<0x82>", "<0xAC>", f"{S}cat"), "\u20ac cat"),
        ((f"{S}the", "<0x41>"), "theA"),
        (("<0xE2>", "<0x82>", f"{S}cat"), "\ufffd cat"),
        (("<0xE2>", "<0x41>"), "\ufffdA"),
    ],
)
def test_rules(pieces: tuple[str, ...], text: str) -> None:
    assert decode(*pieces) == text


def test_language_tags_and_size() -> None:
    tokenizer = Tokenizer(PIECES)
    assert tokenizer.language_tags == {4: "en-US"}
    assert tokenizer.vocab_size == len(PIECES)


@pytest.mark.parametrize("index", [-1, len(PIECES)])
def test_ids_out_of_range(index: int) -> None:
    with pytest.raises(
        CheckpointError, match=rf"Token id {index} is outside the 13 pieces.*does the tokenizer"
    ):
        Tokenizer(PIECES).decode([5, index])


def test_no_pieces() -> None:
    with pytest.raises(CheckpointError, match="has no pieces; is its file complete"):
        Tokenizer([])


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters=S), max_size=30))
def test_sentencepiece_text_round_trip(text: str, trained: bytes) -> None:
    """Whatever SentencePiece encodes, byte fallback included, we decode as it does."""
    import sentencepiece

    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained)
    ids = theirs.encode(text)
    ours = Tokenizer.from_sentencepiece(trained)
    if not set(ids) & set(ours.language_tags):
        assert ours.decode(ids) == theirs.decode(ids)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000))
def test_sentencepiece_random_ids(seed: int, trained: bytes) -> None:
    """On any ids but control pieces, tags and bytes (where the rules differ) both decoders agree."""
    import sentencepiece

    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained)
    ours = Tokenizer.from_sentencepiece(trained)
    plain = [index for index, piece in enumerate(ours.pieces) if not piece.startswith("<")]
    ids = np.random.default_rng(seed).choice(plain, 20).tolist()
    assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("model", ["multi", "en"])
def test_golden_tokenizer(model: str, shared_dir: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    with tarfile.open(shared_dir / "golden" / f"{model}.nemo") as archive:
        member = next(name for name in archive.getnames() if name.endswith("_tokenizer.model"))
        content = archive.extractfile(member)
        assert content is not None
        proto = content.read()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=proto)
    ours = Tokenizer.from_sentencepiece(proto)
    rng = np.random.default_rng(3)
    plain = [index for index in range(1, ours.vocab_size) if index not in ours.language_tags]
    for _ in range(300):
        ids = rng.choice(plain, rng.integers(1, 40)).tolist()
        assert ours.decode(ids) == theirs.decode(ids)


def test_sentencepiece_from_path(trained: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.model").write_bytes(trained)
    assert Tokenizer.from_sentencepiece(tmp_path / "t.model") == Tokenizer.from_sentencepiece(trained)


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_bad_sentencepiece(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    path = tmp_path / "t.model"
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"t\.model is not a SentencePiece model .*fetch the checkpoint again"
    ):
        Tokenizer.from_sentencepiece(path)
    with pytest.raises(CheckpointError, match="The tokenizer model is not a SentencePiece model"):
        Tokenizer.from_sentencepiece(content)


def test_without_sentencepiece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(BackendError, match=r"sentencepiece package; run: pip install 'nemostream\[train\]'"):
        Tokenizer.from_sentencepiece(b"x")


@settings(deadline=None)
@given(
    pieces=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\n\r\t"), max_size=6).filter(
            lambda piece: piece not in ("<blk>", "<blank>")
        ),
        min_size=1,
        max_size=20,
    )
)
def test_tokens_txt_round_trip(pieces: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("t") / "tokens.txt"
    Tokenizer(pieces).save_tokens_txt(path)
    assert Tokenizer.from_tokens_txt(path).pieces == tuple(pieces)
    assert Tokenizer.from_tokens_txt(path, len(pieces)).pieces == tuple(pieces)


def test_tokens_txt_with_ids_first_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "tokens.txt"
    path.write_bytes(f"0\t<unk>\r\n1\t{S}a\r\n2\t7\r\n3\t<blank>\r\n".encode())
    assert Tokenizer.from_tokens_txt(path).pieces == ("<unk>", f"{S}a", "7")


@pytest.mark.parametrize("line", ["a x", "a", "a -1", "a \u00b2", "b 0"])
def test_bad_tokens_txt(line: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.txt"
    path.write_text(f"a 0\n{line}\n", encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"tokens\.txt line 2 is .*Take tokens\.txt from the same folder"
    ):
        Tokenizer.from_tokens_txt(path)


def test_tokens_txt_with_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "tokens.txt"
    path.write_text("a 0\nb 2\n")
    with pytest.raises(CheckpointError, match=r"no piece for token id 1, and the model has 3 pieces"):
        Tokenizer.from_tokens_txt(path, 3)


@pytest.mark.parametrize("piece", ["a\nb", "a\tb", "a\r"])
def test_pieces_that_tokens_txt_cannot_hold(piece: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Piece 0 is .*use the Hugging Face format"):
        Tokenizer([piece]).save_tokens_txt(tmp_path / "tokens.txt")


@pytest.mark.parametrize(
    "vocab", [{piece: index for index, piece in enumerate(PIECES)}, [[piece, -1.0] for piece in PIECES]]
)
def test_tokenizer_json(vocab: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    added = [{"id": 13, "content": "<pad>"}, {"id": 14, "content": "<blank>"}]
    path.write_text(json.dumps({"added_tokens": added, "model": {"vocab": vocab}}), encoding="utf-8")
    assert Tokenizer.from_huggingface(path, 13).pieces == PIECES


def test_tokenizer_json_with_pieces_among_the_added_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    content = {"added_tokens": [{"id": 1, "content": "<en-US>"}], "model": {"vocab": {"a": 0}}}
    path.write_text(json.dumps(content))
    assert Tokenizer.from_huggingface(path, 2).language_tags == {1: "en-US"}
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has no piece for token id 2"):
        Tokenizer.from_huggingface(path, 3)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": [3]}}'])
def test_bad_tokenizer_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json is not a tokenizer\.json with a model\.vocab"
    ):
        Tokenizer.from_huggingface(path, 2)


def test_missing_tokenizer_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokens\.txt cannot be read \(No such file"):
        Tokenizer.from_tokens_txt(tmp_path / "tokens.txt")
