"""ONNX bundles of small models for tests, each made once a session."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path

from nemostream.checkpoints import load_checkpoint
from nemostream.export.linear import Weights
from nemostream.export.onnx import export_onnx
from nemostream.model.network import Network
from nemostream.runtimes.torch import load_network
from nemostream.text.tokenizer import Tokenizer
from tests.models import PIECES, small_config, small_network


@cache
def random_network(prompt: bool) -> Network:
    """The network of `random_bundle`."""
    return small_network(small_config(prompt=prompt))


@cache
def random_bundle(prompt: bool, weights: Weights = "fp32") -> Path:
    """A bundle with random weights; do not write to it."""
    folder = _folder()
    export_onnx(random_network(prompt), Tokenizer(PIECES), folder, source="random", weights=weights)
    return folder


@cache
def golden_bundle(checkpoint: Path) -> tuple[Network, Path]:
    """The network of a golden checkpoint and its bundle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the golden folders have no tokenizer
        loaded = load_checkpoint(checkpoint)
    network, folder = load_network(loaded), _folder()
    export_onnx(network, loaded.tokenizer, folder, source=str(checkpoint))
    return network, folder


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the interpreter ends


def _folder() -> Path:
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="nemostream-bundle-"))
    return Path(_FOLDERS[-1].name)
