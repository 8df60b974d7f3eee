"""`Checkpoint`: a whole model in memory, whatever file it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nemostream.checkpoints.names import expected_shapes
from nemostream.config import ModelConfig
from nemostream.errors import CheckpointError
from nemostream.text.tokenizer import Tokenizer

_SHOWN = 3  # tensors that an error names before it only counts


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Configuration, weights and tokenizer of one model; one that exists is complete and consistent.

    Attributes:
        config: the dimensions, contexts and languages.
        tensors: canonical name (see `names`) -> float32 or float16 array of the expected shape, in the order
            of `expected_shapes`.
        tokenizer: the pieces; ``config.vocab_size`` of them.
        source: the path or ``id@revision`` that it was read from, for messages and manifests.
        format: "nemo", "huggingface" or "mlx".

    Raises:
        CheckpointError: if a tensor is missing, unknown or misshapen, or the tokenizer has another size.
    """

    config: ModelConfig
    tensors: dict[str, npt.NDArray[Any]] = field(repr=False)
    tokenizer: Tokenizer
    source: str
    format: str

    def __post_init__(self) -> None:
        check_tensors(self.config, self.tensors, self.source)
        if self.tokenizer.vocab_size != self.config.vocab_size:
            raise CheckpointError(
                f"{self.source} has a tokenizer of {self.tokenizer.vocab_size} pieces and a model of "
                f"{self.config.vocab_size}; use the tokenizer that came with this model."
            )
        ordered = {name: self.tensors[name] for name in expected_shapes(self.config)}
        object.__setattr__(self, "tensors", ordered)


def check_tensors(config: ModelConfig, tensors: Mapping[str, npt.NDArray[Any]], source: str) -> None:
    """Check that ``tensors`` are exactly the weights of a model with this configuration.

    Raises:
        CheckpointError: naming the first few tensors that are missing, unknown, or of a wrong shape or dtype.
    """
    shapes = expected_shapes(config)
    missing = [f"{name} {list(shape)}" for name, shape in shapes.items() if name not in tensors]
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} of {len(shapes)} tensors: {_some(missing)}. "
            "The checkpoint is incomplete, or its configuration is of another model; fetch it again."
        )
    extra = [f"{name} {list(array.shape)}" for name, array in tensors.items() if name not in shapes]
    if extra:
        raise CheckpointError(
            f"{source} has {len(extra)} tensors that the configuration has no place for: {_some(extra)}. "
            "The weights are of another model than the configuration; fetch both from one place."
        )
    wrong = [
        f"{name} is {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in shapes.items()
        if tensors[name].shape != shape
    ]
    if wrong:
        raise CheckpointError(
            f"{source} has {len(wrong)} tensors of a wrong shape: {_some(wrong)}. "
            "The weights are of another model than the configuration; fetch both from one place."
        )
    types = [
        f"{name} is {array.dtype}"
        for name, array in tensors.items()
        if array.dtype not in (np.float32, np.float16)
    ]
    if types:
        raise CheckpointError(
            f"{source} has {len(types)} tensors that are not float32 or float16: {_some(types)}. "
            "Convert the checkpoint to one of these first."
        )


def _some(items: list[str]) -> str:
    more = len(items) - _SHOWN
    return "; ".join(items[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
