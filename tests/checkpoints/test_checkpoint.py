"""A `Checkpoint` that exists is complete."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from nemostream.checkpoints import Checkpoint, check_tensors
from nemostream.errors import CheckpointError
from nemostream.text import Tokenizer

NAME = "encoder.layers.1.conv.norm.weight"


def test_missing_tensors_are_named_with_their_shapes(checkpoint: Checkpoint) -> None:
    tensors = {name: array for name, array in checkpoint.tensors.items() if "norm_out" not in name}
    with pytest.raises(
        CheckpointError, match=r"a\.nemo lacks 4 of \d+ tensors: .*norm_out\.weight \[8\]"
    ) as info:
        check_tensors(checkpoint.config, tensors, "a.nemo")
    assert "and 1 more" in str(info.value)
    assert "fetch it again" in str(info.value)


def test_extra_tensors_are_named(checkpoint: Checkpoint) -> None:
    tensors = checkpoint.tensors | {"ctc.weight": np.zeros((2, 3), np.float32)}
    with pytest.raises(CheckpointError, match=r"no place for: ctc\.weight \[2, 3\].*fetch both"):
        check_tensors(checkpoint.config, tensors, "a.nemo")


def test_misshapen_tensors_are_named(checkpoint: Checkpoint) -> None:
    tensors = checkpoint.tensors | {NAME: np.zeros(9, np.float32)}
    with pytest.raises(CheckpointError, match=rf"{NAME} is \[9\], expected \[8\].*fetch both"):
        check_tensors(checkpoint.config, tensors, "a.nemo")


def test_other_dtypes_are_named(checkpoint: Checkpoint) -> None:
    tensors = checkpoint.tensors | {NAME: np.zeros(8)}
    with pytest.raises(CheckpointError, match=rf"{NAME} is float64.*Convert"):
        check_tensors(checkpoint.config, tensors, "a.nemo")


def test_tokenizer_of_another_size_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer of 2 pieces and a model of 11; use the tokenizer"):
        dataclasses.replace(checkpoint, tokenizer=Tokenizer(["a", "b"]))


def test_tensors_come_in_canonical_order(make_checkpoint: Callable[..., Checkpoint]) -> None:
    one = make_checkpoint()
    turned = dataclasses.replace(one, tensors=dict(reversed(one.tensors.items())))
    assert list(turned.tensors) == list(one.tensors)
