"""What ``nemostream convert --to mlx`` writes, and that no damage to it goes unnoticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

import nemostream
from nemostream.checkpoints import Checkpoint, load_checkpoint
from nemostream.checkpoints.bundle import read_manifest
from nemostream.checkpoints.files import read_json, read_safetensors, round_to_bfloat16, widen_bfloat16
from nemostream.checkpoints.mlx_style import cache_shapes
from nemostream.errors import BackendError, CheckpointError
from nemostream.export.mlx import export_mlx
from nemostream.features.mel import mel_filterbank
from nemostream.runtimes.onnx_decoder import OnnxDecoder, session_options
from nemostream.runtimes.torch import TorchRuntime
from tests.models import small_checkpoint, small_config

FILES = {
    *("encoder.safetensors", "decoder.safetensors", "decoder.onnx", "joiner.onnx"),
    *("tokens.txt", "melfilters.f32", "nemotron_onnx_config.json"),
}


def checkpoint_in(dtype: str) -> Checkpoint:
    """A checkpoint as one with files of this dtype is in memory."""
    checkpoint = small_checkpoint(small_config())
    held = {
        "fp32": lambda array: array,
        "fp16": lambda array: array.astype(np.float16),
        "bf16": lambda array: widen_bfloat16(round_to_bfloat16(array)),
    }[dtype]
    return dataclasses.replace(
        checkpoint, tensors={name: held(array) for name, array in checkpoint.tensors.items()}
    )


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_round_trip_is_bit_equal(dtype: str, named: bool, tmp_path: Path) -> None:
    """Both if the dtype is asked for, and if it is left out and so the checkpoint's own."""
    checkpoint = checkpoint_in(dtype)
    export_mlx(checkpoint, tmp_path, source="memory", weights=dtype if named else None)
    assert read_manifest(tmp_path).weights == dtype
    loaded = load_checkpoint(tmp_path)
    assert (loaded.config, loaded.tokenizer) == (checkpoint.config, checkpoint.tokenizer)
    assert list(loaded.tensors) == list(checkpoint.tensors)
    for name, array in checkpoint.tensors.items():
        assert loaded.tensors[name].dtype == array.dtype
        assert loaded.tensors[name].tobytes() == array.tobytes()
    size = sum(array.size for array in read_safetensors(tmp_path / "encoder.safetensors").values())
    stored = (tmp_path / "encoder.safetensors").stat().st_size
    assert size * (4 if dtype == "fp32" else 2) < stored < size * (4 if dtype == "fp32" else 2) + 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_mlx(small_checkpoint(small_config()), tmp_path / "mlx", source="memory")
    return tmp_path / "mlx"


def test_what_is_in_the_folder(folder: Path) -> None:
    manifest, config = read_manifest(folder), small_config()
    assert {path.name for path in folder.iterdir()} == FILES | {"manifest.json"}
    assert set(manifest.files) == FILES
    assert (manifest.runtime, manifest.framing, manifest.config) == ("mlx", "native", config)
    content = read_json(folder / "nemotron_onnx_config.json")
    assert content["prompt_dictionary"] == config.prompts
    assert content["features"]["n_mels"] == 128
    assert content["cache_shapes"] == cache_shapes(config)
    filters = np.fromfile(folder / "melfilters.f32", "<f4").reshape(128, 257)
    assert np.array_equal(filters, mel_filterbank(128).astype(np.float32))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_onnx_decoder_equals_the_reference(dtype: str, tmp_path: Path) -> None:
    """Also when weights were rounded: both decoders of a folder have the same numbers."""
    export_mlx(small_checkpoint(small_config()), tmp_path, source="memory", weights=dtype)
    checkpoint = load_checkpoint(tmp_path)
    graphs = tmp_path / "decoder.onnx", tmp_path / "joiner.onnx"
    ours, theirs = OnnxDecoder(*graphs, checkpoint.config, session_options(1)), TorchRuntime(checkpoint)
    rng = np.random.default_rng(0)
    for runtime in (ours, theirs):
        runtime.resize(3)
        for slot in range(3):
            runtime.reset(slot)
    for _ in range(4):
        tokens = rng.integers(0, checkpoint.config.vocab_size, 2)
        predicted, expected = (runtime.predict([2, 0], tokens) for runtime in (ours, theirs))
        assert np.abs(predicted - expected).max() < 1e-5  # outputs are of order 1, sums of 32 products
        encoded = rng.standard_normal((2, 5, checkpoint.config.joint_hidden_size)).astype(np.float32)
        assert (
            np.abs(ours.joint_logits(encoded, predicted) - theirs.joint_logits(encoded, expected)).max()
            < 1e-4
        )
        assert np.array_equal(ours.joint(encoded, predicted), theirs.joint(encoded, expected))


@pytest.mark.parametrize("name", sorted(FILES))
def test_an_altered_file_is_named(name: str, folder: Path) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    for backend in (None, "torch"):
        with pytest.raises(CheckpointError, match=rf"{name} does not have the SHA-256"):
            nemostream.load(folder, backend=backend)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "joiner.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"lacks joiner\.onnx"):
        nemostream.load(folder, backend="mlx", decoder="onnx")


def test_our_onnx_is_not_read_as_weights(folder: Path) -> None:
    for name in ("manifest.json", "decoder.safetensors"):
        (folder / name).unlink()
    with pytest.raises(CheckpointError, match=r"decoder\.safetensors, which came with it, is missing"):
        load_checkpoint(folder)


def test_weights_that_cannot_be_stored_so(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="'int8'; use one of fp32, fp16, bf16"):
        export_mlx(small_checkpoint(small_config()), tmp_path, source="memory", weights="int8")


def test_a_folder_for_mlx_runs_on_nothing_else(folder: Path) -> None:
    with pytest.raises(BackendError, match="is a checkpoint, not a bundle for onnx"):
        nemostream.load(folder, backend="onnx")
    assert nemostream.load(folder, backend="torch").backend == "torch"


class TestDecoder:
    """``decoder`` of `nemostream.load`."""

    @pytest.fixture(autouse=True)
    def _needs_mlx(self) -> None:
        pytest.importorskip("mlx.core", exc_type=ImportError, reason="the extra mlx is not installed")

    def test_only_with_mlx(self, folder: Path) -> None:
        for backend, decoder in ((None, "onnx"), ("onnx", "onnx"), ("torch", "mlx"), ("mlx", "torch")):
            with pytest.raises(BackendError, match="decoder is a setting of the backend mlx"):
                nemostream.load(backend=backend, decoder=decoder)
        assert nemostream.load(folder, decoder="onnx").backend == "mlx-onnx"  # it is MLX's by itself

    def test_without_graphs(self, folder: Path) -> None:
        for name in ("manifest.json", "decoder.onnx"):
            (folder / name).unlink()
        assert nemostream.load(folder, backend="mlx").backend == "mlx"
        with pytest.raises(BackendError, match=r"has no decoder\.onnx and joiner\.onnx.*convert .*--to mlx"):
            nemostream.load(folder, backend="mlx", decoder="onnx")
        with pytest.raises(BackendError, match=r"has no decoder\.onnx and joiner\.onnx"):
            nemostream.load("tiny", backend="mlx", decoder="onnx")

    def test_graphs_of_another_model(self, folder: Path, tmp_path: Path) -> None:
        other = dataclasses.replace(small_config(), predictor_hidden_size=48)
        export_mlx(small_checkpoint(other), tmp_path / "other", source="memory")
        (folder / "manifest.json").unlink()
        (folder / "decoder.onnx").write_bytes((tmp_path / "other" / "decoder.onnx").read_bytes())
        with pytest.raises(BackendError, match=r"decoder\.onnx is not a graph that nemostream wrote"):
            nemostream.load(folder, backend="mlx", decoder="onnx")
        (folder / "decoder.onnx").write_bytes(b"nothing")
        with pytest.raises(BackendError, match=r"could not load .*decoder\.onnx"):
            nemostream.load(folder, backend="mlx", decoder="onnx")
