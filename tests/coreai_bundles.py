"""Core AI bundles of small models for tests, each made once a session. Converting takes seconds."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

from nemostream.checkpoints import load_checkpoint
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.export.coreai.bundle import export_coreai
from nemostream.export.coreai.precision import Activations, Weights
from nemostream.loading import embedded_checkpoint
from nemostream.runtimes.coreai import CoreAiRuntime
from nemostream.runtimes.coreai_graphs import Layout
from nemostream.runtimes.torch import TorchRuntime, load_network
from tests.bundles import _folder
from tests.conftest import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "data" / "golden"
EMBEDDED = embedded_checkpoint()
LAYOUTS: tuple[Layout, ...] = ("six", "sharded")


@cache
def checkpoint_of(path: Path = GOLDEN / "multi.nemo") -> Checkpoint:
    return load_checkpoint(path)


@cache
def coreai_bundle(
    layout: Layout,
    path: Path = GOLDEN / "multi.nemo",
    weights: Weights = "fp32",
    activations: Activations | None = None,
    latency: int | None = None,
) -> Path:
    """A bundle of a checkpoint; do not write to it. The layout "sharded" has calls of 560 ms."""
    if layout == "sharded" and latency is None:
        latency = 560
    checkpoint, folder = checkpoint_of(path), _folder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no model was trained with [42, 13]
        export_coreai(
            load_network(checkpoint),
            checkpoint.tokenizer,
            folder,
            source=str(path),
            layout=layout,
            weights=weights,
            activations=activations,
            latency=latency,
        )
    return folder


@cache
def coreai_runtime(layout: Layout) -> CoreAiRuntime:
    """The runtime of `coreai_bundle`, with two slots; reset those that you use."""
    runtime = CoreAiRuntime(coreai_bundle(layout))
    runtime.resize(2)
    return runtime


def reference_for(runtime: CoreAiRuntime, path: Path = GOLDEN / "multi.nemo") -> TorchRuntime:
    """The reference network with the framing, context and call size of a Core AI runtime."""
    reference = TorchRuntime(checkpoint_of(path), framing=runtime.framing)
    reference.config = runtime.config
    reference.max_frames = runtime.max_frames
    reference.call_frames = runtime.call_frames  # type: ignore[attr-defined]
    reference.att_context = runtime.att_context  # type: ignore[attr-defined]
    return reference
