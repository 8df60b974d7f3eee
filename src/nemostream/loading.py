"""`load`: from a name, a folder or a file to a `Model` on a runtime."""

from __future__ import annotations

import platform
import warnings
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from nemostream.checkpoints.bundle import MANIFEST, read_manifest
from nemostream.engine.model import Model
from nemostream.errors import BackendError, CheckpointError
from nemostream.runtimes.protocol import Runtime

EMBEDDED_MODEL = "tiny"
Backend = Literal["onnx", "torch", "mlx", "coreml", "mil", "coreai"]
MOST_THREADS = 1024  # more than any machine has; starting 100,000 takes minutes
BACKENDS: tuple[Backend, ...] = ("onnx", "torch", "mlx", "coreml", "mil", "coreai")


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
    workers: int | None = None,
    spin: bool = False,
    affinity: str | None = None,
    revision: str | None = None,
    compute_units: str | None = None,
    activations: str | None = None,
    precision: str | None = None,
    decoder: str | None = None,
) -> Model:
    """Load a model.

    Args:
        model: "tiny" (inside the package), a bundle folder, a ``.nemo`` file, a Hugging Face folder, an
            MLX-style folder, or a hub id such as "nvidia/nemotron-3.5-asr-streaming-0.6b".
        backend: "onnx", "torch", "mlx", "coreml", "mil" or "coreai"; None takes what fits: a bundle runs on
            its own runtime (a CoreML bundle by the MIL runner where there is no CoreML), a checkpoint on
            PyTorch.
        threads: CPU threads; None lets the runtime choose.
        workers, spin, affinity: of ONNX Runtime, see `nemostream.runtimes.onnx.OnnxRuntime`.
        revision: of a hub id: a commit, to be sure of what is loaded.
        compute_units: where a CoreML or Core AI bundle runs on a Mac: "cpu", "gpu" or "neural-engine"; None
            is the Neural Engine for CoreML, and leaves the choice to Core AI.
        activations: in what the MIL runner computes: "fp16" rounds as a Neural Engine does, "fp32" does not;
            None is "fp16".
        precision: in what MLX holds and computes the encoder: "fp32", "fp16", "bf16", "int8" or "int4" (these
            two quantise the matrices when they are loaded); None is "fp32".
        decoder: where predictor and joint run behind an encoder in MLX: "mlx", or "onnx" for ONNX Runtime on
            the CPU, which takes a folder that `nemostream convert --to mlx` wrote; None is "mlx".

    Raises:
        CheckpointError: if there is no such model, or it is damaged.
        BackendError: if the backend is unknown, not installed, or can't run this model.
    """
    if not isinstance(model, str | Path):
        raise TypeError(f"The name or the path of a model was expected, not {type(model).__name__}.")
    if backend is not None and backend not in BACKENDS:
        raise BackendError(f"Unknown backend {backend!r}; the valid ones are: {', '.join(BACKENDS)}.")
    for what, count in (("threads", threads), ("workers", workers)):
        if count is not None and (type(count) is not int or not 1 <= count <= MOST_THREADS):
            raise BackendError(f"{what} is {count!r}; a whole number from 1 to {MOST_THREADS} was expected.")
    bundle = embedded_bundle() if str(model) == EMBEDDED_MODEL else Path(model)
    made_for = read_manifest(bundle, verify=False).runtime if (bundle / MANIFEST).is_file() else None
    if revision is not None and (made_for is not None or str(model) == EMBEDDED_MODEL):
        raise CheckpointError(f"A revision was given, but {model} is not on the hub; leave the revision out.")
    if backend is None and made_for == "mlx":
        backend = "mlx"
    if activations is not None and (backend != "mil" or activations not in ("fp16", "fp32")):
        raise BackendError(
            "activations is a setting of the backend mil, fp16 or fp32; leave it out elsewhere."
        )
    if precision is not None and backend != "mlx":
        raise BackendError("precision is a setting of the backend mlx; leave it out elsewhere.")
    if decoder is not None and (backend != "mlx" or decoder not in ("mlx", "onnx")):
        raise BackendError("decoder is a setting of the backend mlx, mlx or onnx; leave it out elsewhere.")
    chosen = {"workers": workers, "spin": spin or None, "affinity": affinity}
    settings = {name: value for name, value in chosen.items() if value is not None}
    if settings and (backend not in (None, "onnx") or not is_onnx(model)):
        raise BackendError(
            f"{next(iter(settings))} is a setting of ONNX Runtime, which does not run {model}; leave it out."
        )
    if str(model) == EMBEDDED_MODEL and backend in ("torch", "mlx"):
        return Model(_checkpoint_runtime(embedded_checkpoint(), backend, threads, None, precision, decoder))
    if made_for not in (None, "mlx"):  # a bundle for MLX is a checkpoint, which runs on PyTorch too
        return Model(_bundle_runtime(bundle, backend, threads, compute_units, settings, activations))
    if compute_units is not None:
        raise BackendError(
            f"{model} is no bundle for CoreML or Core AI, so there are no compute units to choose."
        )
    if str(model) == EMBEDDED_MODEL:
        raise CheckpointError(
            "The embedded model is missing from this installation; install nemostream again."
        )
    if backend in ("onnx", "coreml", "mil", "coreai"):
        target = "coreml" if backend == "mil" else backend
        raise BackendError(
            f"{model} is a checkpoint, not a bundle for {backend}; make one with "
            f"`nemostream convert {model} --to {target} -o FOLDER`, or use --backend torch."
        )
    return Model(_checkpoint_runtime(model, backend, threads, revision, precision, decoder))


def is_onnx(model: str | Path) -> bool:
    """True if `load` would take ONNX Runtime for this model by itself."""
    bundle = embedded_bundle() if str(model) == EMBEDDED_MODEL else Path(model)
    return (bundle / MANIFEST).is_file() and read_manifest(bundle, verify=False).runtime == "onnx"


def _bundle_runtime(
    bundle: Path,
    backend: str | None,
    threads: int | None,
    compute_units: str | None,
    settings: dict[str, Any],
    activations: str | None,
) -> Runtime:
    made_for = read_manifest(bundle, verify=False).runtime
    if made_for == "coreml" and backend in (None, "coreml", "mil"):
        return _coreml_runtime(bundle, backend, threads, compute_units, activations)
    if backend not in (None, made_for):
        raise BackendError(
            f"{bundle} is a bundle for {made_for} and cannot run on {backend}; leave the backend out."
        )
    if made_for == "coreai":
        if threads is not None:
            raise BackendError("Core AI chooses its threads itself; leave threads, and jobs, out.")
        from nemostream.runtimes.coreai import CoreAiRuntime

        return CoreAiRuntime(bundle, compute_units=compute_units)
    if compute_units is not None:
        raise BackendError(
            f"{bundle} is no bundle for CoreML or Core AI, so there are no compute units to choose."
        )
    from nemostream.runtimes.onnx import OnnxRuntime

    return OnnxRuntime(bundle, threads=threads, **settings)


def _coreml_runtime(
    bundle: Path,
    backend: str | None,
    threads: int | None,
    compute_units: str | None,
    activations: str | None,
) -> Runtime:
    if threads is not None:
        raise BackendError(
            "CoreML and the MIL runner choose their threads themselves; leave threads, and jobs, out."
        )
    if backend is None and platform.system() != "Darwin":
        warnings.warn(
            "There is no CoreML here, so the MIL runner executes the bundle; it is exact and slow.",
            stacklevel=3,
        )
        backend = "mil"
    if backend == "mil":
        if compute_units is not None:
            raise BackendError("The MIL runner runs on the CPU; leave the compute units out.")
        from nemostream.runtimes.mil import MilRuntime

        return MilRuntime(bundle, fp16=activations != "fp32")
    from nemostream.runtimes.coreml import CoreMlRuntime

    return CoreMlRuntime(bundle, compute_units=compute_units)


def _checkpoint_runtime(
    model: str | Path,
    backend: str | None,
    threads: int | None,
    revision: str | None,
    precision: str | None,
    decoder: str | None,
) -> Runtime:
    from nemostream.checkpoints import load_checkpoint

    checkpoint = load_checkpoint(model, revision=revision)
    try:
        if backend == "mlx":
            if threads is not None:
                raise BackendError("MLX chooses its threads itself; leave threads out.")
            from nemostream.runtimes.mlx import MlxRuntime, onnx_decoder

            on_cpu = onnx_decoder(checkpoint) if decoder == "onnx" else None
            return MlxRuntime(checkpoint, precision=precision or "fp32", decoder=on_cpu)
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
