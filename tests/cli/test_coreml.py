"""``nemostream convert --to coreml`` and ``inspect`` of what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coreml_bundles import small_coreml_bundle

from .conftest import Run
from .test_convert import CHECKPOINT


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--layout", "six"), "--to coreml has the layouts single, english, sharded, not six"),
        (("--weights", "fp32"), "--to coreml stores weights as fp16 or palette8 or"),
        (("--tiers", "560"), "--tiers and --watch are for --layout sharded only"),
        (("--watch",), "--tiers and --watch are for --layout sharded only"),
        (("--layout", "sharded", "--chunk", "112"), "--layout sharded has --tiers instead of --chunk"),
        (("--latency", "320"), "--latency is for --to sherpa"),
    ],
)
def test_usage_errors(run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = run("convert", CHECKPOINT, "--to", "coreml", *arguments, "-o", tmp_path / "out")
    assert result.code == 2
    assert sentence in result.err
    assert not (tmp_path / "out").exists()


def test_options_of_coreml_are_refused_elsewhere(run: Run, tmp_path: Path) -> None:
    result = run("convert", CHECKPOINT, "--to", "onnx", "--att-context", "56", "3", "-o", tmp_path / "out")
    assert result.code == 2
    assert "--att-context is for --to coreml only" in result.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--chunk", "100"), "it has to be a multiple of 112"),
        (("--layout", "sharded", "--tiers", "640"), "the layout sharded has 56, 112, 224, 448"),
        (("--layout", "sharded", "--tiers", "560", "640"), "the layout sharded has 56, 112, 224, 448"),
        (("--att-context", "55", "13"), "left must be a multiple of right + 1"),
    ],
)
def test_calls_that_cannot_be(run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    pytest.importorskip("coremltools", reason="the extra coreml is not installed")
    result = run("convert", CHECKPOINT, "--to", "coreml", *arguments, "-o", tmp_path / "out")
    assert result.code == 5
    assert sentence in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:The model was not trained")
@pytest.mark.long
def test_every_tier_in_one_command_for_the_watch_too(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="the extra coreml is not installed")
    folder = tmp_path / "tiers"
    arguments = ("--layout", "sharded", "--watch", "--weights", "palette6", "--tiers", "560", "4480")
    assert run("convert", CHECKPOINT, "--to", "coreml", *arguments, "-o", folder).code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["4480ms", "560ms"]
    for tier, frames in ((560, 7), (4480, 56)):
        bundle = folder / f"{tier}ms"
        assert not (bundle / "coreml" / "native_weights").exists()
        result = run("inspect", bundle)
        assert result.code == 0
        assert "6-bit palette" in result.out
        assert f"hidden  [1, {frames}, 96]  fp32" in result.out
        assert f"audio  [1, {tier * 16}]  fp32" in result.out


def test_inspect_prints_graphs_and_findings(run: Run) -> None:
    pytest.importorskip("coremltools", reason="the extra coreml is not installed")
    result = run("inspect", small_coreml_bundle("single", "palette8-kmeans"))
    assert result.code == 0
    lines = [line.strip() for line in result.out.splitlines()]
    assert any(line.split() == ["layout", "single"] for line in lines)
    assert "input   processed_signal  [1, 128, 65]  fp32" in lines
    assert "output  new_cache_last_channel  [4, 1, 14, 48]  fp16" in lines
    assert any(line.startswith("weights") and "8-bit palette" in line for line in lines)
    assert any(line.startswith("Neural Engine   integer island") for line in lines)
    assert any("output encoded [1, 48, 7] may come with rows of 32" in line for line in lines)
    assert sum("as in the manifest" in line for line in lines) == 13


def test_inspect_names_an_altered_file(run: Run, tmp_path: Path) -> None:
    import shutil

    pytest.importorskip("coremltools", reason="the extra coreml is not installed")
    shutil.copytree(small_coreml_bundle("single", "palette8-kmeans"), tmp_path / "copy")
    with next((tmp_path / "copy").rglob("weight.bin")).open("ab") as file:
        file.write(b"\0")
    result = run("inspect", tmp_path / "copy")
    assert result.code == 4
    assert "weight.bin" in result.err
    assert "NOT AS IN THE MANIFEST" in result.out


def test_placement_needs_a_mac(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac a line a graph; elsewhere one sentence. A bundle of another kind is named in any case."""
    from nemostream.runtimes import coreml

    pytest.importorskip("coremltools", reason="the extra coreml is not installed")
    bundle = small_coreml_bundle("single", "palette8-kmeans")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    result = run("inspect", bundle, "--placement")
    assert (result.code, result.out) == (7, "")
    assert "CoreML runs on macOS only" in result.err
    result = run("inspect", "tiny", "--placement")
    assert result.code == 4
    assert "is a bundle for onnx, not a CoreML bundle" in result.err
    planned = {"encoder": {"CPU": 0.0004, "NeuralEngine": 0.9996}, "empty": {}}
    monkeypatch.setattr(coreml, "placement", lambda _: planned)
    result = run("inspect", bundle, "--placement")
    assert result.out.splitlines() == ["encoder: CPU 0.0%, NeuralEngine 100.0%", "empty: no estimate"]
