"""CoreML bundles of small models for tests, each made once a session."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from functools import cache
from pathlib import Path

from nemostream.export.coreml.bundle import export_coreml
from nemostream.export.coreml.weights import Weights
from nemostream.model.network import Network
from nemostream.runtimes.coreml_contract import Layout
from nemostream.text.tokenizer import Tokenizer
from tests.models import PIECES, small_config, small_network

CONTEXT = (14, 6)
CHUNK = 56  # mel frames of a call, except in the tiers, which have 112


@cache
def small_coreml_network(prompt: bool) -> Network:
    """The network of `small_coreml_bundle`: four layers, so that each shard has one."""
    return small_network(dataclasses.replace(small_config(prompt=prompt), num_layers=4))


@cache
def small_coreml_bundle(layout: Layout, weights: Weights = "fp16") -> Path:
    """A bundle with random weights, of the layout "english" without prompts; do not write to it."""
    folder = tempfile.TemporaryDirectory(prefix="nemostream-coreml-")
    _FOLDERS.append(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no model was trained with so little context
        export_coreml(
            small_coreml_network(layout != "english"),
            Tokenizer(PIECES),
            Path(folder.name),
            source="random",
            layout=layout,
            weights=weights,
            att_context=CONTEXT,
            chunk=112 if layout in ("sharded", "watch") else CHUNK,
        )
    return Path(folder.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the interpreter ends
