"""Token ids to text: the pieces of a SentencePiece model, and how they join.

Decoding needs the list of pieces and nothing else, so the same small class serves a ``.nemo`` file's
SentencePiece model, a Hugging Face ``tokenizer.json`` and a ``tokens.txt``. The blank is not a piece: its id
is one past the last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from nemostream.errors import BackendError, CheckpointError
from nemostream.text.languages import language_of_tag

SPACE = "\u2581"  # how SentencePiece writes a space inside a piece
CONTROL_PIECES = frozenset({"<unk>", "<s>", "</s>", "<pad>"})
BLANK_NAMES = frozenset({"<blk>", "<blank>"})

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """The pieces of a model, in the order of their ids.

    Args:
        pieces: one string for each token id, without the blank.

    Raises:
        CheckpointError: if there are no pieces.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        if not pieces:
            raise CheckpointError("The tokenizer has no pieces; is its file complete?")
        self.pieces: tuple[str, ...] = tuple(pieces)
        self.language_tags: dict[int, str] = {
            index: language
            for index, piece in enumerate(self.pieces)
            if (language := language_of_tag(piece)) is not None
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.pieces == other.pieces

    def __hash__(self) -> int:
        return hash(self.pieces)

    @property
    def vocab_size(self) -> int:
        """Number of pieces, which is also the id of the blank."""
        return len(self.pieces)

    def decode(self, ids: Iterable[int]) -> str:
        """Join the pieces of ``ids`` (0 <= id < `vocab_size`, no blanks) into text.

        SentencePiece's rules: U+2581 is a space, spaces at the start go, runs of byte pieces ``<0xNN>`` are
        UTF-8 (U+FFFD stands for what is not). Unlike there, control pieces vanish, and so does a language
        tag together with the spaces before it, as in NeMo's transcripts.

        Raises:
            CheckpointError: if an id is outside the vocabulary.
        """
        text = ""
        pending = bytearray()
        for index in ids:
            if not 0 <= index < len(self.pieces):
                raise CheckpointError(
                    f"Token id {index} is outside the {len(self.pieces)} pieces of this tokenizer; "
                    "does the tokenizer belong to this model?"
                )
            piece = self.pieces[index]
            if byte := _BYTE.fullmatch(piece):
                pending.append(int(byte.group(1), 16))
                continue
            if pending:
                text += pending.decode("utf-8", errors="replace")
                pending.clear()
            if index in self.language_tags:
                text = text.rstrip(" ")
            elif piece not in CONTROL_PIECES:
                text += piece.replace(SPACE, " ")
        return (text + pending.decode("utf-8", errors="replace")).lstrip(" ")

    @classmethod
    def from_sentencepiece(cls, model: bytes | Path) -> Self:
        """Read a SentencePiece model (its bytes, or the path of a ``.model`` file).

        Raises:
            BackendError: if the ``sentencepiece`` package is not installed.
            CheckpointError: if it is not a SentencePiece model.
        """
        try:
            import sentencepiece
        except ImportError as error:
            raise BackendError(
                "Reading a SentencePiece model needs the sentencepiece package; "
                "run: pip install 'nemostream[train]'."
            ) from error
        content = model if isinstance(model, bytes) else _read(model)
        processor = sentencepiece.SentencePieceProcessor()
        try:
            if not content:
                raise RuntimeError("it is empty")
            processor.LoadFromSerializedProto(content)
        except RuntimeError as error:
            where = "The tokenizer model" if isinstance(model, bytes) else str(model)
            raise CheckpointError(
                f"{where} is not a SentencePiece model ({error}); fetch the checkpoint again."
            ) from error
        return cls([processor.IdToPiece(index) for index in range(processor.GetPieceSize())])

    @classmethod
    def from_tokens_txt(cls, path: Path, vocab_size: int | None = None) -> Self:
        """Read ``tokens.txt``: ``piece id`` a line (sherpa-onnx) or ``id<tab>piece`` (the public MLX build).

        Args:
            path: the file, UTF-8.
            vocab_size: pieces to keep, where it is known; what comes after (blank, padding) is dropped. When
                it is None only a blank at the end is dropped.

        Raises:
            CheckpointError: if a line cannot be read, or an id is missing or given twice.
        """
        by_id: dict[int, str] = {}
        for number, line in enumerate(_read(path).decode("utf-8", errors="replace").split("\n"), 1):
            line = line.removesuffix("\r")
            if not line:
                continue
            if "\t" in line:
                index, _, piece = line.partition("\t")
            else:
                piece, _, index = line.rpartition(" ")
            if not (index.isascii() and index.isdigit()) or int(index) in by_id:
                raise CheckpointError(
                    f"{path} line {number} is {line!r}; a piece, a space and an id not seen before were "
                    "expected. Take tokens.txt from the same folder as the model."
                )
            by_id[int(index)] = piece
        if vocab_size is None:
            vocab_size = len(by_id) - (by_id.get(len(by_id) - 1) in BLANK_NAMES)
        return cls(_in_order(by_id, vocab_size, path))

    @classmethod
    def from_huggingface(cls, path: Path, vocab_size: int) -> Self:
        """Read the vocabulary of a ``tokenizer.json``.

        Args:
            path: the file.
            vocab_size: pieces of the model; added tokens from this id on (``<pad>``, ``<blank>``) go.

        Raises:
            CheckpointError: if it is not such a file, or lacks an id below ``vocab_size``.
        """
        try:
            content = json.loads(_read(path))
            vocab, added = content["model"]["vocab"], content.get("added_tokens") or []
            by_id: dict[int, str] = {int(token["id"]): str(token["content"]) for token in added}
            if isinstance(vocab, Mapping):  # BPE: piece -> id
                by_id.update({int(index): str(piece) for piece, index in vocab.items()})
            else:  # Unigram: [piece, score] in the order of ids
                by_id.update({index: str(entry[0]) for index, entry in enumerate(vocab)})
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"{path} is not a tokenizer.json with a model.vocab ({error}); fetch the checkpoint again."
            ) from error
        return cls(_in_order(by_id, vocab_size, path))

    @classmethod
    def placeholder(cls, vocab_size: int) -> Self:
        """Return the pieces ``<0>``, ``<1>`` ..., for a checkpoint that came without a tokenizer."""
        return cls([f"<{index}>" for index in range(vocab_size)])

    def save_tokens_txt(self, path: Path) -> None:
        """Write ``piece id`` a line and ``<blk> V`` last, as sherpa-onnx reads it.

        Raises:
            CheckpointError: if a piece holds a line break or a tab, which the format cannot carry.
        """
        for index, piece in enumerate(self.pieces):
            if "\n" in piece or "\t" in piece or piece.endswith("\r"):
                raise CheckpointError(
                    f"Piece {index} is {piece!r}, and tokens.txt cannot hold line breaks or tabs; "
                    "use the Hugging Face format instead."
                )
        lines = [f"{piece} {index}\n" for index, piece in enumerate((*self.pieces, "<blk>"))]
        path.write_bytes("".join(lines).encode())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"The tokenizer file {path} cannot be read ({error.strerror}); fetch the checkpoint again."
        ) from error


def _in_order(by_id: Mapping[int, Any], vocab_size: int, path: Path) -> list[str]:
    missing = next((index for index in range(vocab_size) if index not in by_id), None)
    if missing is not None:
        raise CheckpointError(
            f"{path} has no piece for token id {missing}, and the model has {vocab_size} pieces; "
            "does the tokenizer belong to this model?"
        )
    return [str(by_id[index]) for index in range(vocab_size)]
