"""Hugging Face folders: read, written, and loaded by transformers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nemostream.checkpoints import Checkpoint, load_huggingface, save_huggingface
from nemostream.checkpoints.files import read_json, read_safetensors, write_json, write_safetensors
from nemostream.errors import CheckpointError, ConfigError
from nemostream.text import Tokenizer


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip_is_bit_equal(
    dtype: str,
    config: object,
    make_checkpoint: Callable[..., Checkpoint],
    same: Callable[..., bool],
    tmp_path: Path,
) -> None:
    checkpoint = make_checkpoint(config, dtype)
    save_huggingface(checkpoint, tmp_path / "new" / "folder", dtype)  # type: ignore[arg-type]
    loaded = load_huggingface(tmp_path / "new" / "folder")
    assert same(loaded, checkpoint)
    assert loaded.format == "huggingface"


def test_bfloat16_is_widened(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_huggingface(checkpoint, tmp_path, "bfloat16")
    for name, array in load_huggingface(tmp_path).tensors.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, checkpoint.tensors[name], rtol=2**-8)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_transformers_loads_it_strictly(dtype: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    save_huggingface(checkpoint, tmp_path, dtype)  # type: ignore[arg-type]
    name = read_json(tmp_path / "config.json")["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    state = model.state_dict()
    assert model.dtype == getattr(torch, dtype)
    stored = read_safetensors(tmp_path / "model.safetensors")
    assert state.keys() == stored.keys()
    for key, array in stored.items():
        np.testing.assert_array_equal(state[key].float().numpy(), array.astype(np.float32))
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    assert processor.blank_token_id == checkpoint.config.blank_id
    ids = [1, 3, 9, 8, 7, 10]
    assert processor.decode(ids, skip_special_tokens=True) == checkpoint.tokenizer.decode(ids) == "thes 1."


def test_we_load_what_transformers_saves(checkpoint: Checkpoint, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_huggingface(checkpoint, tmp_path)
    name = read_json(tmp_path / "config.json")["architectures"][0]
    model = getattr(transformers, name).from_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    for extra in ("processor_config.json", "tokenizer.json"):
        (tmp_path / "theirs" / extra).write_bytes((tmp_path / extra).read_bytes())
    loaded = load_huggingface(tmp_path / "theirs")
    assert loaded.config == checkpoint.config
    assert all(np.array_equal(loaded.tensors[key], array) for key, array in checkpoint.tensors.items())


@pytest.mark.parametrize("model", ["multi", "en"])
def test_golden_folder_without_tokenizer_warns(model: str, shared_dir: Path) -> None:
    with pytest.warns(UserWarning, match=r"no tokenizer\.json, so the text shows token numbers such as <17>"):
        loaded = load_huggingface(shared_dir / "golden" / f"{model}_hf")
    assert loaded.tokenizer.decode([0, 17]) == "<0><17>"


def test_widths_that_the_format_cannot_hold(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = dataclasses.replace(checkpoint.config, joint_hidden_size=4)
    tensors = dict(checkpoint.tensors)
    for name in ("encoder_projector", "decoder.decoder_projector"):
        tensors |= {
            f"{name}.weight": tensors[f"{name}.weight"][:4],
            f"{name}.bias": tensors[f"{name}.bias"][:4],
        }
    tensors["joint.head.weight"] = tensors["joint.head.weight"][:, :4]
    narrow = dataclasses.replace(checkpoint, config=config, tensors=tensors)
    with pytest.raises(CheckpointError, match="joint is 4 wide and the predictor 6"):
        save_huggingface(narrow, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_contexts_that_the_format_cannot_hold(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = dataclasses.replace(checkpoint.config, att_context_sizes=((56, 3), (42, 13)))
    with pytest.raises(CheckpointError, match=r"\[\[56, 3\], \[42, 13\]\] have several left sizes.*keep"):
        save_huggingface(dataclasses.replace(checkpoint, config=config), tmp_path)


def shard(checkpoint: Checkpoint, folder: Path) -> dict[str, str]:
    """Save in two shards with an index, and return the index's map."""
    save_huggingface(checkpoint, folder)
    (folder / "model.safetensors").unlink()
    names = list(checkpoint.tensors)
    where = {name: f"part-{int(index > 20)}.safetensors" for index, name in enumerate(names)}
    for file in set(where.values()):
        part = {name: checkpoint.tensors[name] for name in names if where[name] == file}
        write_safetensors(folder / file, part, "float32")
    write_json(folder / "model.safetensors.index.json", {"weight_map": where})
    return where


def test_shards(checkpoint: Checkpoint, same: Callable[..., bool], tmp_path: Path) -> None:
    shard(checkpoint, tmp_path)
    assert same(load_huggingface(tmp_path), checkpoint)


def test_missing_shard(checkpoint: Checkpoint, tmp_path: Path) -> None:
    shard(checkpoint, tmp_path)
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks part-1\.safetensors, which .*fetch the missing file"):
        load_huggingface(tmp_path)


def test_index_naming_a_tensor_that_is_not_there(checkpoint: Checkpoint, tmp_path: Path) -> None:
    where = shard(checkpoint, tmp_path)
    index = {"weight_map": where | {"ghost.weight": "part-0.safetensors"}}
    write_json(tmp_path / "model.safetensors.index.json", index)
    with pytest.raises(CheckpointError, match=r"disagree about ghost\.weight .*fetch both again"):
        load_huggingface(tmp_path)


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "a\\x.safetensors", "x.bin"]
)
def test_index_naming_a_file_elsewhere(file: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    where = shard(checkpoint, tmp_path)
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": dict.fromkeys(where, file)})
    with pytest.raises(
        CheckpointError, match=r"a plain \.safetensors file name inside the folder was expected"
    ):
        load_huggingface(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": [1]}, {"weight_map": {"a": 1}}])
def test_index_without_a_map(index: dict[str, object], checkpoint: Checkpoint, tmp_path: Path) -> None:
    shard(checkpoint, tmp_path)
    write_json(tmp_path / "model.safetensors.index.json", index)
    with pytest.raises(CheckpointError, match="no weight_map of names to files"):
        load_huggingface(tmp_path)


def test_folder_without_weights(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_huggingface(checkpoint, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor .*; fetch the weights"):
        load_huggingface(tmp_path)


def test_another_model_type(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_huggingface(checkpoint, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper"}))
    with pytest.raises(ConfigError, match="'whisper'"):
        load_huggingface(tmp_path)


def test_config_without_a_key(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_huggingface(checkpoint, tmp_path)
    content = read_json(tmp_path / "config.json")
    for key in content["encoder_config"]:
        encoder = {name: value for name, value in content["encoder_config"].items() if name != key}
        write_json(tmp_path / "config.json", content | {"encoder_config": encoder})
        with contextlib.suppress(CheckpointError):  # some are not read; no other class may come out
            load_huggingface(tmp_path)
    del content["decoder_hidden_size"]
    write_json(tmp_path / "config.json", content)
    with pytest.raises(CheckpointError, match=r"config\.json .*'decoder_hidden_size'.*fetch"):
        load_huggingface(tmp_path)


def test_published_tokenizer_shape_with_pad_and_blank(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_huggingface(checkpoint, tmp_path)
    pieces = checkpoint.tokenizer.pieces
    added = [{"id": len(pieces), "content": "<pad>"}, {"id": len(pieces) + 1, "content": "<blank>"}]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    write_json(tmp_path / "tokenizer.json", {"added_tokens": added, "model": {"type": "BPE", "vocab": vocab}})
    assert load_huggingface(tmp_path).tokenizer == Tokenizer(pieces)
