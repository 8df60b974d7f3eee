"""CoreML bundles on any machine: the saved programs, executed in numpy. For proof, not for speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nemostream.mil import Program, read_program
from nemostream.runtimes.coreml_bundle import Arrays, CoreMlBundleRuntime


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
        super().__init__(bundle)
        self.arithmetic = "fp16" if fp16 else "fp32"
        self._bundle, self._fp16 = bundle, fp16
        # what is missing is found before the first audio
        self.programs: dict[str, Program] = {name: self._read(name) for name in self.contract.encoder}

    def execute(self, graph: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """See `CoreMlBundleRuntime.execute`."""
        if graph not in self.programs:
            self.programs[graph] = self._read(graph)
        return self.programs[graph](inputs)

    def _read(self, graph: str) -> Program:
        return read_program(self._bundle / self.contract.graphs[graph].path, fp16=self._fp16)
