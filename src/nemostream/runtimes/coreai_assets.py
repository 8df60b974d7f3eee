"""Core AI assets, loaded and called from any thread.

`coreai.runtime` is asynchronous and its objects belong to the event loop that made them, so they get a thread
with a loop of its own, and callers wait for it.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nemostream.errors import BackendError
from nemostream.runtimes.coreai_graphs import MAIN

COMPUTE_UNITS = ("cpu", "gpu", "neural-engine")

Array = NDArray[Any]
Specs = dict[str, tuple[tuple[int, ...], str]]  # name -> shape and dtype
T = TypeVar("T")


class CoreAiAssets:
    """Loaded graphs.

    Args:
        paths: name of a graph -> its ``.aimodel`` folder.
        compute_units: "cpu", or the preferred unit "gpu" or "neural-engine", on macOS; None leaves the
            choice to Core AI. Elsewhere there is only the CPU.

    Raises:
        BackendError: if Core AI is not installed, cannot load a graph, or has no such unit here.
    """

    def __init__(self, paths: Mapping[str, Path], compute_units: str | None = None) -> None:
        options = _specialization(compute_units)
        self._functions: dict[tuple[str, str], Any] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(self._loop,), name="nemostream-coreai", daemon=True).start()
        self._models = AsyncExitStack()
        release = weakref.finalize(self, _release, self._loop, self._models, self._functions)
        release.atexit = False  # the thread has ended by then, and temporary folders remove themselves
        for name, path in paths.items():
            self._run(self._load(name, path.absolute(), options), f"load {path}")

    def call(self, graph: str, inputs: Mapping[str, Array], entry: str = MAIN) -> dict[str, Array]:
        """Run an entry point.

        Args:
            graph: name of the graph.
            inputs: by name; floats and integers are cast to what the graph takes.
            entry: name of the entry point.

        Returns:
            outputs by name, in the graph's own dtypes.

        Raises:
            BackendError: if Core AI fails.
        """
        return self._run(self._call(self._functions[graph, entry], inputs), f"run {graph}")

    def signature(self, graph: str, entry: str = MAIN) -> tuple[Specs, Specs]:
        """Inputs and outputs of an entry point."""
        return _signature(self._functions[graph, entry].desc)

    def entries(self) -> list[tuple[str, str]]:
        """All (graph, entry point)."""
        return sorted(self._functions)

    def _run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (RuntimeError, ValueError, OSError) as error:
            raise BackendError(f"Core AI could not {what}: {str(error).rstrip('.')}.") from error

    async def _load(self, name: str, path: Path, options: Any) -> None:
        from coreai.authoring import AIModelAsset

        # an asset made executable runs everywhere; `AIModel.load` alone finds no program on Linux
        model = await self._models.enter_async_context(AIModelAsset.load(path).executable(options))
        for entry in model.function_names:
            self._functions[name, entry] = model.load_function(entry)

    @staticmethod
    async def _call(function: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
        from coreai.runtime import NDArray as CoreAiArray

        describe = function.desc.input_descriptor
        given = {
            name: CoreAiArray(np.ascontiguousarray(value, dtype=describe(name).dtype))
            for name, value in inputs.items()
        }
        results = await function(given)
        # copies, since a buffer may be the graph's own and written again by its next call
        return {name: np.array(value.numpy()) for name, value in results.items()}


def describe_asset(path: Path) -> list[tuple[str, list[tuple[str, str]], list[tuple[str, str]]]]:
    """Entry points of an asset with their inputs and outputs, (name, type) each, without loading its weights.

    Raises:
        BackendError: if Core AI is not installed, or cannot read the asset.
    """
    _package()
    from coreai.authoring import AIModelAsset

    try:
        summary = AIModelAsset.load(path.absolute()).summary(include_statistics=False)
    except (RuntimeError, OSError) as error:
        raise BackendError(f"Core AI could not read {path}: {str(error).rstrip('.')}.") from error
    if summary is None:
        return []
    return [
        (name, summary.function_inputs(name), summary.function_outputs(name))
        for name in summary.function_names
    ]


def _signature(description: Any) -> tuple[Specs, Specs]:
    sides = []
    for names, describe in (
        (description.input_names, description.input_descriptor),
        (description.output_names, description.output_descriptor),
    ):
        sides.append({name: (tuple(describe(name).shape), str(describe(name).dtype)) for name in names})
    return sides[0], sides[1]


def _specialization(compute_units: str | None) -> Any:
    """Options for loading; None where there is nothing to choose."""
    _package()
    from coreai.runtime import SpecializationOptions

    if compute_units is None:
        return None
    if compute_units not in COMPUTE_UNITS:
        raise BackendError(
            f"Unknown compute units {compute_units!r}; the valid ones are: {', '.join(COMPUTE_UNITS)}."
        )
    if not SpecializationOptions.is_supported():
        if compute_units == "cpu":
            return None
        raise BackendError(
            f"Core AI runs on {compute_units} on macOS 27 or newer only; leave the compute units out."
        )
    if compute_units == "cpu":
        return SpecializationOptions.cpu_only()
    from coreai.runtime import ComputeUnitKind

    kind = ComputeUnitKind.gpu() if compute_units == "gpu" else ComputeUnitKind.neural_engine()
    return SpecializationOptions.from_preferred_compute_unit_kind(kind)


def _package() -> None:
    """Import Core AI, or say how to install it."""
    try:
        import coreai.runtime  # noqa: F401
    except ImportError as error:
        raise BackendError(
            "Core AI bundles need coreai-core (Linux or macOS); install it with "
            "`pip install 'nemostream[coreai]'`."
        ) from error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped."""
    loop.run_forever()
    loop.close()


def _release(
    loop: asyncio.AbstractEventLoop, models: AsyncExitStack, functions: dict[tuple[str, str], Any]
) -> None:
    """Free the graphs on their own thread, then end it."""

    async def free() -> None:
        functions.clear()
        await models.aclose()
        loop.stop()

    asyncio.run_coroutine_threadsafe(free(), loop)
