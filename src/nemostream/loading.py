"""`load`: from a name, a folder or a file to a `Model` on a runtime."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

from nemostream.engine.model import Model
from nemostream.errors import BackendError, CheckpointError
from nemostream.runtimes.protocol import Runtime

EMBEDDED_MODEL = "tiny"
Backend = Literal["onnx", "torch", "mlx"]
BACKENDS: tuple[Backend, ...] = ("onnx", "torch", "mlx")


def embedded_bundle() -> Path:
    """Folder of the ONNX bundle that ships inside the package."""
    return Path(str(files("nemostream") / "assets" / EMBEDDED_MODEL))


def embedded_clip() -> Path:
    """A recording that ships inside the package."""
    return Path(str(files("nemostream") / "assets" / "clip.flac"))


def embedded_checkpoint() -> Path:
    """Hugging Face folder with the same weights, for the other runtimes and for conversion."""
    return embedded_bundle() / "checkpoint"


def load(
    model: str | Path = EMBEDDED_MODEL,
    *,
    backend: str | None = None,
    threads: int | None = None,
    revision: str | None = None,
) -> Model:
    """Load a model.

    Args:
        model: "tiny" (inside the package), a bundle folder, a ``.nemo`` file, a Hugging Face folder, an
            MLX-style folder, or a hub id such as "nvidia/nemotron-3.5-asr-streaming-0.6b".
        backend: "onnx", "torch" or "mlx"; None takes what fits: a bundle runs on its own runtime, a
            checkpoint on PyTorch.
        threads: CPU threads; None lets the runtime choose.
        revision: of a hub id: a commit, to be sure of what is loaded.

    Raises:
        CheckpointError: if there is no such model, or it is damaged.
        BackendError: if the backend is unknown, not installed, or can't run this model.
    """
    if backend is not None and backend not in BACKENDS:
        raise BackendError(f"Unknown backend {backend!r}; the valid ones are: {', '.join(BACKENDS)}.")
    bundle = embedded_bundle() if str(model) == EMBEDDED_MODEL else Path(model)
    if str(model) == EMBEDDED_MODEL and backend in ("torch", "mlx"):
        return Model(_checkpoint_runtime(embedded_checkpoint(), backend, threads, revision=None))
    if (bundle / "manifest.json").is_file():
        return Model(_bundle_runtime(bundle, backend, threads))
    if str(model) == EMBEDDED_MODEL:
        raise CheckpointError(
            "The embedded model is missing from this installation; install nemostream again."
        )
    if backend == "onnx":
        raise BackendError(
            f"{model} is a checkpoint, not an ONNX bundle; make one with "
            f"`nemostream convert {model} --to onnx -o FOLDER`, or use --backend torch."
        )
    return Model(_checkpoint_runtime(model, backend, threads, revision))


def _bundle_runtime(bundle: Path, backend: str | None, threads: int | None) -> Runtime:
    if backend not in (None, "onnx"):
        raise BackendError(f"{bundle} is an ONNX bundle and cannot run on {backend}; leave the backend out.")
    from nemostream.runtimes.onnx import OnnxRuntime

    return OnnxRuntime(bundle, threads=threads)


def _checkpoint_runtime(
    model: str | Path, backend: str | None, threads: int | None, revision: str | None
) -> Runtime:
    from nemostream.checkpoints import load_checkpoint

    checkpoint = load_checkpoint(model, revision=revision)
    try:
        if backend == "mlx":
            if threads is not None:
                raise BackendError("MLX chooses its threads itself; leave threads out.")
            from nemostream.runtimes.mlx import MlxRuntime

            return MlxRuntime(checkpoint)
        from nemostream.runtimes.torch import TorchRuntime

        return TorchRuntime(checkpoint, threads=threads)
    except ImportError as error:  # plain mlx on Linux is there but can't be imported
        name = (error.name or "").partition(".")[0]
        if name not in ("torch", "mlx"):
            raise
        raise BackendError(
            f"Running a checkpoint on {name} needs that package; install it with "
            f"`pip install 'nemostream[{name}]'`."
        ) from None
