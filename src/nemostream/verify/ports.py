"""`Port`: a bundle or checkpoint as `verify` sees it, whatever runtime it is for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemostream.checkpoints import load_checkpoint
from nemostream.checkpoints.bundle import MANIFEST, read_manifest
from nemostream.errors import BackendError
from nemostream.loading import load
from nemostream.runtimes.protocol import Runtime
from nemostream.verify.reference import Reference
from nemostream.verify.stages import InnerStages


@dataclass(frozen=True)
class Port:
    """What is verified.

    Attributes:
        source: its path or id.
        runtime: as users run it.
        weights: how they are stored, such as "fp32" or "fp16"; see `nemostream.verify.gates`.
        inner: its encoder opened up, or None if only its output can be seen.
    """

    source: str
    runtime: Runtime
    weights: str
    inner: InnerStages | None = None


def open_port(source: str, *, backend: str | None = None, revision: str | None = None) -> Port:
    """Open a bundle of any runtime, or a checkpoint on PyTorch.

    Raises:
        CheckpointError: if it is missing, altered or not readable.
        BackendError: if its runtime, or a package for looking inside it, is not installed.
    """
    folder = Path(source).expanduser()
    if not (folder / MANIFEST).is_file():
        if backend not in (None, "torch"):
            raise BackendError(f"{source} is a checkpoint, which runs on PyTorch only; leave --backend out.")
        from nemostream.runtimes.torch import TorchRuntime

        checkpoint = load_checkpoint(source, revision=revision)
        return Port(source, TorchRuntime(checkpoint), "fp32", Reference(checkpoint))
    manifest = read_manifest(folder)
    runtime = load(folder, backend=backend).engine.runtime
    inner: InnerStages | None = None
    if manifest.runtime == "onnx":
        from nemostream.verify.onnx_stages import OnnxStages

        inner = OnnxStages(folder)
    return Port(source, runtime, manifest.weights, inner)
