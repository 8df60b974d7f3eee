"""CoreML bundles on any machine: the saved programs, executed in numpy. For proof, not for speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nemostream.mil import Program, read_program
from nemostream.runtimes.coreml_bundle import Arrays, CoreMlBundleRuntime, read_contract


class MilRuntime(CoreMlBundleRuntime):
    """A CoreML bundle, executed by `nemostream.mil`.

    Args:
        bundle: folder made by `nemostream convert --to coreml`.
        fp16: round as the Neural Engine does; False computes in fp32.

    Raises:
        CheckpointError: if the folder is not such a bundle, or was altered.
        BackendError: if coremltools is not installed.
    """

    name = "mil"

    def __init__(self, bundle: Path, *, fp16: bool = True) -> None:
        paths = {name: bundle / graph.path for name, graph in read_contract(bundle).graphs.items()}
        self.programs: dict[str, Program] = {}

        def execute(graph: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
            if graph not in self.programs:
                self.programs[graph] = read_program(paths[graph], fp16=fp16)
            return self.programs[graph](inputs)

        super().__init__(bundle, execute)
        for name in self.contract.encoder:  # so that what is missing is found before the first audio
            self.programs[name] = read_program(paths[name], fp16=fp16)
        self.arithmetic = "fp16" if fp16 else "fp32"
