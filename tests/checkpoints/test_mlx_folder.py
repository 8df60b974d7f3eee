"""The public MLX build's folder: ours, and one as the public export script writes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemostream.checkpoints import Checkpoint, load_mlx_style, save_mlx_style
from nemostream.checkpoints.files import read_json, read_safetensors, write_json
from nemostream.checkpoints.mlx_style import cache_shapes
from nemostream.errors import CheckpointError

CONFIG = "nemotron_onnx_config.json"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip_is_bit_equal(
    dtype: str,
    config: object,
    make_checkpoint: Callable[..., Checkpoint],
    same: Callable[..., bool],
    tmp_path: Path,
) -> None:
    checkpoint = make_checkpoint(config, dtype)
    save_mlx_style(checkpoint, tmp_path / "out", dtype)  # type: ignore[arg-type]
    loaded = load_mlx_style(tmp_path / "out")
    assert same(loaded, checkpoint)
    assert loaded.format == "mlx"


def test_what_the_folder_holds(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_mlx_style(checkpoint, tmp_path)
    encoder = read_safetensors(tmp_path / "encoder.safetensors")
    assert {name.split(".")[0] for name in encoder} <= {"encoder", "prompt_projector", "encoder_projector"}
    assert all(array.dtype == np.float16 for array in encoder.values())
    assert np.fromfile(tmp_path / "melfilters.f32", "<f4").size == 128 * 257
    assert (tmp_path / "tokens.txt").read_text(encoding="utf-8").endswith("\n. 10\n<blk> 11\n")
    content = read_json(tmp_path / CONFIG)
    assert content["features"]["hop_length"] == 160
    assert content["cache_shapes"] == cache_shapes(checkpoint.config)


def test_cache_shapes_of_the_full_model(make_checkpoint: Callable[..., Checkpoint]) -> None:
    config = dataclasses.replace(
        make_checkpoint().config, hidden_size=1024, num_heads=8, num_layers=24, subsampling_channels=256
    )
    shapes = cache_shapes(config)  # against the published description of the public build
    assert len(shapes) == 24 + 24 + 3 + 24
    assert shapes["k_cache_23"] == shapes["v_cache_0"] == [1, 8, 56, 128]
    assert [shapes[f"conv2d_cache_{i}"] for i in range(3)] == [
        [1, 1, 1, 131],
        [1, 256, 1, 68],
        [1, 256, 1, 36],
    ]
    assert shapes["conv1d_cache_0"] == [1, 1024, 8]


def public_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the configuration and tokens as the public export does: no model section, id before piece."""
    save_mlx_style(checkpoint, folder, "float32")
    content = read_json(folder / CONFIG)
    del content["model"]
    write_json(folder / CONFIG, content)
    lines = [f"{index}\t{piece}\n" for index, piece in enumerate((*checkpoint.tokenizer.pieces, "<pad>"))]
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")


def test_folder_without_model_section(
    checkpoint: Checkpoint, same: Callable[..., bool], tmp_path: Path
) -> None:
    public_folder(checkpoint, tmp_path)
    assert same(load_mlx_style(tmp_path), checkpoint)


@pytest.mark.parametrize("key", ["features", "encoder", "model_type"])
def test_folder_without_model_section_or_what_it_follows_from(
    key: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    public_folder(checkpoint, tmp_path)
    content = read_json(tmp_path / CONFIG)
    del content[key]
    write_json(tmp_path / CONFIG, content)
    with pytest.raises(
        CheckpointError, match=rf"no 'model' section, .* without '{key}'; write the folder again"
    ):
        load_mlx_style(tmp_path)


def test_model_section_that_is_damaged(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_mlx_style(checkpoint, tmp_path)
    content = read_json(tmp_path / CONFIG)
    for model in (3, {}, content["model"] | {"att_context_sizes": 3}, content["model"] | {"new_key": 1}):
        write_json(tmp_path / CONFIG, content | {"model": model})
        with pytest.raises(CheckpointError):
            load_mlx_style(tmp_path)


class _Step:
    """Predictor and joint in torch, as an exporter would wrap them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        import torch

        config, tensors = checkpoint.config, checkpoint.tensors
        hidden, classes = config.predictor_hidden_size, config.vocab_size + 1

        class Predictor(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = torch.nn.Embedding(classes, hidden)
                self.lstm = torch.nn.LSTM(hidden, hidden, config.predictor_layers, batch_first=True)
                self.decoder_projector = torch.nn.Linear(hidden, config.joint_hidden_size)

            def forward(self, token: Any, h: Any, c: Any) -> Any:
                out, (h, c) = self.lstm(self.embedding(token), (h, c))
                return self.decoder_projector(out), h, c

        class Joint(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = torch.nn.Linear(config.joint_hidden_size, classes)

            def forward(self, encoder: Any, decoder: Any) -> Any:
                return self.head(torch.relu(encoder + decoder))

        self.predictor, self.joint = Predictor().eval(), Joint().eval()
        for module, prefix in ((self.predictor, "decoder."), (self.joint, "joint.")):
            state = {
                name.removeprefix(prefix): torch.from_numpy(array)
                for name, array in tensors.items()
                if name.startswith(prefix)
            }
            module.load_state_dict(state)
        state_shape = (config.predictor_layers, 1, hidden)
        self.predictor_inputs = (
            torch.zeros(1, 1, dtype=torch.long),
            torch.zeros(state_shape),
            torch.zeros(state_shape),
        )
        self.joint_inputs = (
            torch.zeros(1, config.joint_hidden_size),
            torch.zeros(1, config.joint_hidden_size),
        )


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_decoder_out_of_exported_onnx(
    dynamo: bool,
    make_checkpoint: Callable[..., Checkpoint],
    same: Callable[..., bool],
    tmp_path: Path,
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    checkpoint = make_checkpoint()
    public_folder(checkpoint, tmp_path)
    (tmp_path / "decoder.safetensors").unlink()
    step = _Step(checkpoint)
    for name, module, inputs in (
        ("decoder", step.predictor, step.predictor_inputs),
        ("joiner", step.joint, step.joint_inputs),
    ):
        torch.onnx.export(module, inputs, str(tmp_path / f"{name}.onnx"), dynamo=dynamo)
    assert same(load_mlx_style(tmp_path), checkpoint)


def write_onnx(path: Path, nodes: list[Any], arrays: dict[str, np.ndarray]) -> None:
    onnx = pytest.importorskip("onnx")
    initialisers = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], initialisers)), str(path))


def test_decoder_out_of_onnx_with_canonical_names(
    checkpoint: Checkpoint, same: Callable[..., bool], tmp_path: Path
) -> None:
    save_mlx_style(checkpoint, tmp_path, "float32")
    arrays = read_safetensors(tmp_path / "decoder.safetensors")
    (tmp_path / "decoder.safetensors").unlink()
    write_onnx(tmp_path / "decoder.onnx", [], {k: v for k, v in arrays.items() if k.startswith("decoder.")})
    write_onnx(tmp_path / "joiner.onnx", [], {k: v for k, v in arrays.items() if k.startswith("joint.")})
    assert same(load_mlx_style(tmp_path), checkpoint)


def test_onnx_that_is_no_predictor(checkpoint: Checkpoint, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    save_mlx_style(checkpoint, tmp_path)
    (tmp_path / "decoder.safetensors").unlink()
    write_onnx(tmp_path / "joiner.onnx", [], {})
    write_onnx(tmp_path / "decoder.onnx", [], {})
    with pytest.raises(CheckpointError, match=r"decoder\.onnx has no embedding and LSTM.*export it again"):
        load_mlx_style(tmp_path)
    lstm = onnx.helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"])
    gather = onnx.helper.make_node("Gather", ["e", "i"], ["x"])
    write_onnx(tmp_path / "decoder.onnx", [gather, lstm], {"e": np.zeros((3, 2), np.float32)})
    with pytest.raises(CheckpointError, match=r"computes its LSTM weights .*export it again"):
        load_mlx_style(tmp_path)
    arrays = {k: v for k, v in checkpoint.tensors.items() if k.startswith("decoder.")}
    write_onnx(tmp_path / "decoder.onnx", [], arrays)
    with pytest.raises(
        CheckpointError, match=r"joiner\.onnx has no linear layer with a bias for joint\.head"
    ):
        load_mlx_style(tmp_path)
    (tmp_path / "decoder.onnx").write_bytes(b"not onnx")
    with pytest.raises(CheckpointError, match=r"decoder\.onnx cannot be read as ONNX"):
        load_mlx_style(tmp_path)


def test_no_decoder_at_all(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_mlx_style(checkpoint, tmp_path)
    (tmp_path / "decoder.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither decoder\.safetensors nor both decoder\.onnx.*fetch"):
        load_mlx_style(tmp_path)
