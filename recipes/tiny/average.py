"""``average.pt``: the averaged weights of a run, to be exported or to start another run from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nemostream.config import ModelConfig


class Average(NamedTuple):
    """What ``average.pt`` holds: weights by checkpoint key in fp32, and the head for phones."""

    config: ModelConfig
    weights: dict[str, NDArray[np.float32]]
    ctc_head: dict[str, Tensor] | None  # None in files that were written before it was kept


def write_average(
    run: Path, config: ModelConfig, weights: dict[str, Tensor], ctc_head: dict[str, Tensor]
) -> None:
    """Write ``average.pt`` in one move, so that a kill can't tear it."""
    saved = {"config": config.to_dict(), "weights": weights, "ctc_head": ctc_head}
    torch.save(saved, run / "average.tmp")
    (run / "average.tmp").rename(run / "average.pt")


def read_average(run: Path) -> Average:
    """Read what `write_average` wrote."""
    saved = torch.load(run / "average.pt", map_location="cpu", weights_only=True)
    weights = {name: value.numpy() for name, value in saved["weights"].items()}
    return Average(ModelConfig.from_dict(saved["config"]), weights, saved.get("ctc_head"))
