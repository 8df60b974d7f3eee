"""CoreML bundles on a Mac, through coremltools. This file has not been run: there was no Mac.

All that can be wrong elsewhere, the order of calls, state, decoding, is `coreml_bundle`, which the MIL runner
proves on any machine. What is left here is loading, and reading outputs by their strides: the Neural Engine
pads rows, so that the numbers of an output need not lie one after the other.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemostream.checkpoints.bundle import MANIFEST
from nemostream.checkpoints.files import optional_module
from nemostream.errors import BackendError
from nemostream.runtimes.coreml_bundle import Arrays, CoreMlBundleRuntime, read_contract
from nemostream.runtimes.coreml_contract import Graph

COMPUTE_UNITS = {"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "neural-engine": "CPU_AND_NE"}
"""Never ``ALL``: with it CoreML puts the whole graph on the GPU, or an int8 one on a slow path of it."""
_CACHE = Path("~/Library/Caches/nemostream/coreml")


class CoreMlRuntime(CoreMlBundleRuntime):
    """A CoreML bundle, executed by CoreML; the decoder's small graphs run on the CPU.

    Args:
        bundle: folder made by `nemostream convert --to coreml`.
        compute_units: of the encoder, a key of `COMPUTE_UNITS`; None is the Neural Engine.

    Raises:
        CheckpointError: if the folder is not such a bundle, or was altered.
        BackendError: if this is not a Mac, or coremltools is not installed.
    """

    name = "coreml"

    def __init__(self, bundle: Path, *, compute_units: str | None = None) -> None:
        units = compute_units or "neural-engine"
        if units not in COMPUTE_UNITS:
            raise BackendError(
                f"Unknown compute units {units!r}; the valid ones are: {', '.join(COMPUTE_UNITS)}."
            )
        self._tools = _tools(f"use --backend mil, which executes {bundle} on any machine")
        super().__init__(bundle)
        self._bundle, self._units = bundle, units
        self.models = {name: self._model(name) for name in self.contract.graphs if name != "preprocessor"}

    def execute(self, graph: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """See `CoreMlBundleRuntime.execute`."""
        if graph not in self.models:  # the preprocessor, which is there to be verified only
            self.models[graph] = self._model(graph)
        outputs = self.models[graph].predict(dict(inputs))
        return {name: dense(value) for name, value in outputs.items()}

    def _model(self, graph: str) -> Any:
        units = self._units if graph in self.contract.encoder else "cpu"
        return _load(self._tools, self._bundle, self.contract.graphs[graph], units)


def dense(value: Any) -> NDArray[Any]:
    """An output as an array whose numbers lie one after the other, whatever strides it came with.

    Args:
        value: a numpy array, or an object with flat ``data``, ``shape`` and ``strides``, these counted in
            numbers, as an ``MLMultiArray`` has them.
    """
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    flat = np.asarray(value.data)
    strides = tuple(int(stride) * flat.itemsize for stride in value.strides)
    return np.array(np.lib.stride_tricks.as_strided(flat, tuple(map(int, value.shape)), strides))


def placement(bundle: Path) -> dict[str, dict[str, float]]:
    """Where CoreML plans to run the encoder, asked for CPU and Neural Engine as the runtime asks.

    Args:
        bundle: folder made by `nemostream convert --to coreml`.

    Returns:
        encoder graph -> device, such as "NeuralEngine" -> its share of the graph's estimated cost.

    Raises:
        CheckpointError: if the folder is not such a bundle, or was altered.
        BackendError: if this is not a Mac, or coremltools is not installed.
    """
    contract = read_contract(bundle)
    tools = _tools("without a Mac, the findings of `nemostream inspect` are all there is")
    plans = optional_module("coremltools.models.compute_plan", "coreml", "A compute plan")
    units = getattr(tools.ComputeUnit, COMPUTE_UNITS["neural-engine"])
    shares: dict[str, dict[str, float]] = {}
    for name in contract.encoder:
        plan = plans.MLComputePlan.load_from_path(str(_compiled(tools, bundle, contract.graphs[name])), units)
        cost: defaultdict[str, float] = defaultdict(float)
        for operation in plan.model_structure.program.functions["main"].block.operations:
            usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
            weight = plan.get_estimated_cost_for_mlprogram_operation(operation)
            if usage is not None and weight is not None:  # constants have neither
                cost[_device(usage.preferred_compute_device)] += weight.weight
        whole = sum(cost.values()) or 1.0
        shares[name] = {device: part / whole for device, part in sorted(cost.items())}
    return shares


def _device(device: Any) -> str:
    """``MLNeuralEngineComputeDevice`` -> ``NeuralEngine``."""
    return type(device).__name__.removeprefix("ML").removesuffix("ComputeDevice")


def _tools(elsewhere: str) -> Any:
    """Coremltools, where it can run models; ``elsewhere`` says what to do on another system."""
    if platform.system() != "Darwin":
        raise BackendError(f"CoreML runs on macOS only; {elsewhere}.")
    return optional_module("coremltools", "coreml", "Running a CoreML bundle")


def _load(tools: Any, bundle: Path, graph: Graph, units: str) -> Any:
    compiled = _compiled(tools, bundle, graph)
    return tools.models.CompiledMLModel(str(compiled), getattr(tools.ComputeUnit, COMPUTE_UNITS[units]))


def _compiled(tools: Any, bundle: Path, graph: Graph) -> Path:
    """The compiled form of a graph, made once for a bundle's content: compiling takes half a minute."""
    key = hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()[:16]  # it has the hash of every file
    target = _CACHE.expanduser() / key / f"{graph.name}.mlmodelc"
    if not target.is_dir():
        made = Path(tools.models.utils.compile_model(str(bundle / graph.path)))
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        shutil.move(made, partial)  # copies, if the temporary folder is on another disk
        try:
            partial.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(partial, ignore_errors=True)
            if not target.is_dir():
                raise
    return target
