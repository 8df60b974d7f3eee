"""CoreML bundles for tests, each made once a session, and the network with the numbers that they store."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
from torch import nn

from nemostream.checkpoints import load_checkpoint
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.export.coreml.bundle import export_coreml
from nemostream.export.coreml.convert import write_package
from nemostream.export.coreml.weights import Weights
from nemostream.loading import embedded_checkpoint
from nemostream.model.network import Network
from nemostream.runtimes.coreml_contract import Graph, Layout
from nemostream.runtimes.torch import load_network
from nemostream.text.tokenizer import Tokenizer
from tests.models import PIECES, small_config, small_network

Model = Literal["small", "small english", "embedded"]
CONTEXT = (14, 6)
CHUNK = 56  # mel frames of a call, except in the tiers, which have 112


@cache
def small_coreml_network(prompt: bool) -> Network:
    """The network of `small_coreml_bundle`: four layers, so that each shard has one."""
    return small_network(dataclasses.replace(small_config(prompt=prompt), num_layers=4))


def small_coreml_bundle(layout: Layout, weights: Weights = "fp16") -> Path:
    """A bundle with random weights, of the layout "english" without prompts; do not write to it."""
    chunk = 112 if layout in ("sharded", "watch") else CHUNK
    return coreml_bundle("small english" if layout == "english" else "small", layout, weights, chunk)


def embedded_coreml_bundle(layout: Layout, weights: Weights = "fp16") -> Path:
    """A bundle of the embedded model, context [56, 13]; do not write to it."""
    return coreml_bundle("embedded", layout, weights, 112)


@cache
def coreml_checkpoint(model: Model) -> Checkpoint:
    """What a bundle is made from."""
    if model == "embedded":
        return load_checkpoint(embedded_checkpoint())
    network = small_coreml_network(model == "small")
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    return Checkpoint(network.config, tensors, Tokenizer(PIECES), source="random", format="huggingface")


@cache
def coreml_bundle(model: Model, layout: Layout, weights: Weights, chunk: int) -> Path:
    """A bundle of one of the models, converted once; do not write to it."""
    folder = tempfile.TemporaryDirectory(prefix="nemostream-coreml-")
    _FOLDERS.append(folder)
    checkpoint = coreml_checkpoint(model)

    def write(module: nn.Module, graph: Graph, path: Path, **how: Any) -> None:
        """A graph that another bundle of this model has as well is copied."""
        key = f"{model} {graph} {how}"
        if key in _PACKAGES:
            shutil.copytree(_PACKAGES[key], path)
        else:
            write_package(module, graph, path, **how)
            _PACKAGES[key] = path

    with (
        warnings.catch_warnings(),
        little_garbage(),
        mock.patch(f"{export_coreml.__module__}.write_package", write),
    ):
        warnings.simplefilter("ignore")  # that no model was trained with so little context
        export_coreml(
            load_network(checkpoint),
            checkpoint.tokenizer,
            Path(folder.name),
            source=checkpoint.source,
            layout=layout,
            weights=weights,
            att_context=(56, 13) if model == "embedded" else CONTEXT,
            chunk=chunk,
        )
    return Path(folder.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the interpreter ends
_PACKAGES: dict[str, Path] = {}


@contextlib.contextmanager
def little_garbage() -> Iterator[None]:
    """Conversions collect garbage in every call, which can take longer than all the rest of a small one."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _StoredSize(int):
    """A head size whose root, by which scores are divided, is a fp16 constant of the graph."""

    def __pow__(self, exponent: float) -> float:  # type: ignore[override]
        return float(np.float16(int(self) ** exponent))


def with_stored_scales(network: Network) -> Network:
    """A copy of a network whose scales of attention are rounded to fp16, as constants of graphs are."""
    changed = copy.deepcopy(network)
    for layer in changed.encoder.layers:
        layer.self_attn.head_size = _StoredSize(layer.self_attn.head_size)  # type: ignore[union-attr]
    return changed
