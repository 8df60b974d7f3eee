"""`Port`: a bundle or checkpoint as `verify` sees it, whatever runtime it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemostream.checkpoints import load_checkpoint
from nemostream.checkpoints.bundle import MANIFEST, read_manifest
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.errors import BackendError
from nemostream.loading import load
from nemostream.runtimes.protocol import Runtime
from nemostream.verify.reference import Reference
from nemostream.verify.stages import InnerStages

if TYPE_CHECKING:
    from nemostream.model.network import Network
    from nemostream.verify.graphs import GraphRun


@dataclass(frozen=True)
class Port:
    """What is verified.

    Attributes:
        source: its path or id.
        runtime: as users run it.
        weights: how they are stored, such as "fp32" or "fp16"; see `nemostream.verify.gates`.
        inner: its encoder opened up, or None if only its output can be seen.
        arithmetic: in what it computes.
        decoder: "staged" if predictor and joint can be compared one by one; "joined" if only the logits of
            both together can, on frames of the port itself; "tokens" if it gives no logits.
        exact_end: False if a stream's last, shorter call can't be exact, since the graph does not take its
            length.
        projected: False if the frames that its runtime gives are not yet projected to the joint.
        graphs: runs each of its graphs and, for the same inputs, the network's module; None if it has no
            graphs that apps call by themselves.
    """

    source: str
    runtime: Runtime
    weights: str
    inner: InnerStages | None = None
    arithmetic: str = "fp32"
    decoder: Literal["staged", "joined", "tokens"] = "staged"
    exact_end: bool = True
    projected: bool = True
    graphs: Callable[[Network], Iterator[GraphRun]] | None = None


def open_port(
    source: str,
    *,
    backend: str | None = None,
    revision: str | None = None,
    activations: str | None = None,
) -> Port:
    """Open a bundle of any runtime, or a checkpoint on PyTorch or MLX.

    Raises:
        CheckpointError: if it is missing, altered or not readable.
        BackendError: if its runtime, or a package for looking inside it, is not installed.
    """
    folder = Path(source).expanduser()
    manifest = read_manifest(folder) if (folder / MANIFEST).is_file() else None
    if manifest is None or manifest.runtime == "mlx":
        if backend not in (None, "torch", "mlx"):
            raise BackendError(
                f"{source} is a checkpoint, which runs on torch and mlx, not on {backend}; convert it first, "
                "or leave --backend out."
            )
        checkpoint = load_checkpoint(source, revision=revision)
        weights = "fp32" if manifest is None else manifest.weights
        if backend == "mlx" or (backend is None and manifest is not None):
            return _mlx_port(source, checkpoint, weights)
        from nemostream.runtimes.torch import TorchRuntime

        return Port(source, TorchRuntime(checkpoint), weights, Reference(checkpoint))
    runtime = load(folder, backend=backend, activations=activations).engine.runtime
    inner: InnerStages | None = None
    if manifest.runtime == "onnx":
        from nemostream.verify.onnx_stages import OnnxStages

        inner = OnnxStages(folder)
    elif manifest.runtime == "coreml":
        return _coreml_port(source, runtime, manifest.weights)
    elif manifest.runtime == "coreai":
        from nemostream.runtimes.coreai import CoreAiRuntime
        from nemostream.verify.coreai_stages import CoreAiStages
        from nemostream.verify.graphs import coreai_graphs

        assert isinstance(runtime, CoreAiRuntime)
        graphs = partial(coreai_graphs, runtime)
        return Port(
            source, runtime, manifest.weights, CoreAiStages(runtime), runtime.arithmetic, graphs=graphs
        )
    return Port(source, runtime, manifest.weights, inner)


def _coreml_port(source: str, runtime: Runtime, weights: str) -> Port:
    from nemostream.runtimes.coreml_bundle import CoreMlBundleRuntime
    from nemostream.runtimes.coreml_contract import FusedDecoder
    from nemostream.verify.coreml_stages import CoreMlStages
    from nemostream.verify.graphs import coreml_graphs

    assert isinstance(runtime, CoreMlBundleRuntime)
    decoder = runtime.contract.decoder
    kind: Literal["joined", "tokens"] = "joined"
    if isinstance(decoder, FusedDecoder) and decoder.logits is None:
        kind = "tokens"
    arithmetic = getattr(runtime, "arithmetic", "fp16")
    return Port(
        source,
        runtime,
        weights,
        CoreMlStages(runtime),
        arithmetic,
        kind,
        exact_end=runtime.contract.valid is not None,
        projected=not isinstance(decoder, FusedDecoder),
        graphs=partial(coreml_graphs, runtime),
    )


def _mlx_port(source: str, checkpoint: Checkpoint, weights: str) -> Port:
    try:
        from nemostream.runtimes.mlx import MAX_FRAMES, MlxRuntime
        from nemostream.verify.mlx_stages import MlxStages
    except ImportError as error:  # plain mlx on Linux is there but can't be imported
        if (error.name or "").partition(".")[0] != "mlx":
            raise
        raise BackendError(
            "Running a checkpoint on mlx needs that package; install it with `pip install 'nemostream[mlx]'`."
        ) from None
    runtime = MlxRuntime(checkpoint)
    inner = MlxStages(checkpoint, runtime.left_context, runtime.max_frames or MAX_FRAMES)
    return Port(source, runtime, weights, inner)
