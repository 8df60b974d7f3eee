"""What can be tested of the CoreML runtime without a Mac: compilation, compute units, strides, placement."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

pytest.importorskip("coremltools", reason="the extra coreml is not installed")

from nemostream.engine.model import Model
from nemostream.errors import BackendError
from nemostream.runtimes import coreml
from nemostream.runtimes.coreml import CoreMlRuntime, dense, placement
from nemostream.runtimes.coreml_contract import Graph
from nemostream.runtimes.mil import MilRuntime
from tests.coreml_bundles import small_coreml_bundle

UNITS = SimpleNamespace(CPU_ONLY="CPU_ONLY", CPU_AND_GPU="CPU_AND_GPU", CPU_AND_NE="CPU_AND_NE", ALL="ALL")


class FakeTools:
    """The parts of coremltools that need a Mac."""

    def __init__(self, folder: Path) -> None:
        self.compiled: list[str] = []
        self.loaded: dict[str, str] = {}
        self.planned: dict[str, str] = {}
        self.ComputeUnit = UNITS
        self._folder = folder
        self.models = SimpleNamespace(
            utils=SimpleNamespace(compile_model=self._compile), CompiledMLModel=self._load
        )
        self.MLComputePlan = SimpleNamespace(load_from_path=self._plan)

    def _compile(self, package: str) -> str:
        self.compiled.append(Path(package).stem)
        made = self._folder / f"{len(self.compiled)}.mlmodelc"
        made.mkdir()
        (made / "of").write_text(package)
        return str(made)

    def _load(self, path: str, units: str) -> Any:
        assert (Path(path) / "of").is_file()
        self.loaded[Path(path).stem] = units
        return SimpleNamespace(predict=None)

    def _plan(self, path: str, units: str) -> Any:
        """Three operations of which one costs nothing; a quarter of the cost is on the CPU."""
        self.planned[Path(path).stem] = units
        neural, cpu = (type(f"ML{name}ComputeDevice", (), {})() for name in ("NeuralEngine", "CPU"))
        plan = {"const": (None, None), "linear": (neural, 0.6), "cast": (cpu, 0.2)}
        block = SimpleNamespace(operations=list(plan))
        return SimpleNamespace(
            model_structure=SimpleNamespace(
                program=SimpleNamespace(functions={"main": SimpleNamespace(block=block)})
            ),
            get_compute_device_usage_for_mlprogram_operation=lambda name: (
                plan[name][0] and SimpleNamespace(preferred_compute_device=plan[name][0])
            ),
            get_estimated_cost_for_mlprogram_operation=lambda name: (
                plan[name][1] and SimpleNamespace(weight=plan[name][1])
            ),
        )


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTools:
    made = FakeTools(tmp_path)
    monkeypatch.setattr(coreml, "optional_module", lambda *_: made)
    monkeypatch.setattr(coreml, "_CACHE", tmp_path / "cache")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    return made


def test_a_bundle_is_compiled_once_for_its_content(tools: FakeTools, tmp_path: Path) -> None:
    bundle = small_coreml_bundle("single")
    graphs = ["decoder", "encoder", "joint_noencproj_batched", "prompt_projection"]
    CoreMlRuntime(bundle)
    CoreMlRuntime(bundle)
    assert sorted(tools.compiled) == graphs
    other = tmp_path / "other"
    shutil.copytree(bundle, other)
    CoreMlRuntime(other)  # the same content elsewhere
    assert sorted(tools.compiled) == graphs
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"source": "another"}))
    CoreMlRuntime(other)
    assert sorted(tools.compiled) == sorted(2 * graphs)


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, "CPU_AND_NE"), ("gpu", "CPU_AND_GPU"), ("cpu", "CPU_ONLY")]
)
def test_units_of_the_encoder_are_never_all(tools: FakeTools, asked: str | None, expected: str) -> None:
    CoreMlRuntime(small_coreml_bundle("sharded"), compute_units=asked)
    assert {units for name, units in tools.loaded.items() if name.startswith("encoder_")} == {expected}
    assert tools.loaded["decoder"] == "CPU_ONLY"
    assert "preprocessor" not in tools.loaded


def test_placement_is_the_share_of_the_cost(tools: FakeTools) -> None:
    """Planned for the units that the runtime asks for: with all of them CoreML would plan the GPU."""
    shares = placement(small_coreml_bundle("sharded"))
    assert list(shares) == ["encoder_pre_encode", *(f"encoder_shard_{index}" for index in range(4))]
    assert shares["encoder_shard_0"] == {"CPU": pytest.approx(0.25), "NeuralEngine": pytest.approx(0.75)}
    assert set(tools.planned.values()) == {"CPU_AND_NE"}


def test_elsewhere_the_runner_is_recommended() -> None:
    bundle = small_coreml_bundle("single")
    with pytest.raises(BackendError, match="CoreML runs on macOS only; use --backend mil"):
        CoreMlRuntime(bundle)
    with pytest.raises(BackendError, match="Unknown compute units 'all'; the valid ones are: cpu, gpu"):
        CoreMlRuntime(bundle, compute_units="all")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_numpy_arrays_with_padded_rows_become_dense(dtype: type) -> None:
    """[1, 1024, 7] with strides of 32 a row, as seed 001 reports them."""
    room = np.full(1024 * 32, -1, dtype)
    size = room.itemsize
    padded = as_strided(room, (1, 1024, 7), (1024 * 32 * size, 32 * size, size))
    padded[:] = np.arange(1024 * 7).reshape(1, 1024, 7) % 2048
    found = dense(padded)
    assert found.flags.c_contiguous
    assert np.array_equal(found.reshape(-1), np.arange(1024 * 7) % 2048)


class PaddedOutput:
    """An output as the Neural Engine gives it: rows padded to 32 numbers."""

    def __init__(self, array: Any) -> None:
        self.shape = array.shape
        width = -(-array.shape[-1] // 32) * 32 if array.ndim else 1
        room = np.full((*array.shape[:-1], width), 77, array.dtype)
        room[..., : array.shape[-1]] = array
        self.data = room.reshape(-1)
        self.strides = [int(np.prod(room.shape[axis + 1 :])) for axis in range(array.ndim)]


def test_outputs_are_read_by_their_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """CoreML's model objects replaced by the MIL runner with padded outputs: the same tokens."""
    array = np.arange(2 * 1024 * 7, dtype=np.float16).reshape(2, 1024, 7)
    np.testing.assert_array_equal(dense(PaddedOutput(array)), array)
    bundle = small_coreml_bundle("sharded")
    proven = MilRuntime(bundle)

    class FakeModel:
        def __init__(self, graph: str) -> None:
            self._graph = graph

        def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {name: PaddedOutput(value) for name, value in proven.run(self._graph, inputs).items()}

    asked: list[tuple[str, str]] = []

    def load(tools: Any, folder: Path, graph: Graph, units: str) -> FakeModel:
        asked.append((graph.name, units))
        return FakeModel(graph.name)

    monkeypatch.setattr("nemostream.runtimes.coreml._load", load)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    noise = np.random.default_rng(3).normal(0, 0.1, 48_000).astype(np.float32)
    tokens = [
        [token.id for token in Model(runtime).transcribe(noise).tokens]
        for runtime in (CoreMlRuntime(bundle), proven)
    ]
    assert tokens[0] == tokens[1]
    assert "preprocessor" not in dict(asked)  # `verify` asks for it, streams do not
    audio = {"audio": noise[None, :17_920], "audio_length": np.array([17_920])}
    found, expected = (
        runtime.run("preprocessor", audio)["mel"] for runtime in (CoreMlRuntime(bundle), proven)
    )
    assert np.array_equal(found, expected)
    assert dict(asked)["preprocessor"] == "cpu"
    assert dict(asked)["encoder_shard_0"] == "neural-engine"
    assert dict(asked)["decoder"] == "cpu"
