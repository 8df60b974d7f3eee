"""Bundles for CoreML: what was saved keeps the contract, weights are stored as asked, files are whole."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from nemostream.checkpoints.bundle import read_manifest
from nemostream.errors import BackendError, CheckpointError, ContextError
from nemostream.export.coreml.bundle import call_size, export_coreml
from nemostream.export.coreml.weights import Weights
from nemostream.runtimes.coreml_contract import Layout, contract
from nemostream.text.tokenizer import Tokenizer
from tests.coreml_bundles import CONTEXT, small_coreml_bundle, small_coreml_network
from tests.models import PIECES, small_config

BUNDLES: list[tuple[Layout, Weights]] = [
    ("single", "palette8-kmeans"),
    ("english", "fp16"),
    ("sharded", "int8"),
]


@pytest.fixture(autouse=True)
def _coremltools() -> None:
    pytest.importorskip("coremltools", reason="the extra coreml is not installed")


@pytest.fixture(params=BUNDLES, ids="-".join)
def bundle(request: pytest.FixtureRequest) -> Path:
    return small_coreml_bundle(*request.param)


def test_saved_graphs_keep_the_contract(bundle: Path) -> None:
    """Read from the saved programs, not from the converter."""
    from nemostream.export.coreml.package import read_package

    manifest = read_manifest(bundle)
    assert (manifest.runtime, manifest.framing) == ("coreml", "uniform")
    made = contract(manifest.config, manifest.layout, CONTEXT, manifest.max_frames)  # type: ignore[arg-type]
    assert {path.relative_to(bundle).as_posix() for path in bundle.rglob("*.mlpackage")} == {
        graph.path for graph in made.graphs.values()
    }
    for graph in made.graphs.values():
        package = read_package(bundle / graph.path)
        for found, expected in ((package.inputs, graph.inputs), (package.outputs, graph.outputs)):
            assert {(value.name, value.shape, value.dtype.replace("fp", "float")) for value in found} == {
                (value.name, value.shape, value.dtype) for value in expected
            }
        assert package.needs == ("iOS 18, macOS 15" if manifest.layout == "sharded" else "iOS 17, macOS 14")


def test_every_file_is_hashed(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(bundle, folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files - {"manifest.json"} == set(read_manifest(folder).files)
    weights = next(folder.rglob("weight.bin"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weight\.bin does not have the SHA-256"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("layout", "weights", "stored", "operation"),
    [
        ("sharded", "int8", "int8", "constexpr_blockwise_shift_scale"),
        ("single", "palette8-kmeans", "8-bit palette", "constexpr_lut_to_dense"),
        ("english", "fp16", "fp16", None),
    ],
)
def test_weights_are_stored_as_asked(
    layout: Layout, weights: Weights, stored: str, operation: str | None
) -> None:
    """All of the encoder's matrices that are large enough; the decoder and the position tables are fp16."""
    from nemostream.export.coreml.package import read_package

    network, bundle = small_coreml_network(layout != "english"), small_coreml_bundle(layout, weights)
    smallest = 10_000 if "kmeans" in weights else 2048
    modules = [network.encoder, *([network.prompt_projector] if layout == "sharded" else [])]
    matrices = [
        parameter.numel()
        for module in modules
        for name, parameter in module.named_parameters()
        if parameter.ndim > 1 and "relative_k_proj" not in name
    ]
    if layout == "sharded":  # of the prompt's first matrix, half is a table
        matrices.remove(network.prompt_projector.linear_1.weight.numel())
        matrices.append(network.config.prompt_intermediate_size * network.config.hidden_size)
    packages = {path.stem: read_package(path) for path in bundle.rglob("*.mlpackage")}
    encoder = [package for name, package in packages.items() if name.startswith("encoder")]
    rest = [package for name, package in packages.items() if not name.startswith("encoder")]
    expected = sum(size for size in matrices if size > smallest)
    found = sum(package.weights.get(stored, 0) for package in encoder)
    if operation is None:
        assert found >= sum(matrices)
    else:
        assert found == expected
        assert sum(package.compressed.get(operation, 0) for package in encoder) == sum(
            size > smallest for size in matrices
        )
    assert all(not package.compressed for package in rest)


def test_host_files_of_the_sharded_layout() -> None:
    """All that the published bundle's host code reads is there; the weights are the network's, rounded."""
    bundle, network = small_coreml_bundle("sharded", "int8"), small_coreml_network(True)
    metadata = json.loads((bundle / "metadata.json").read_text())
    assert metadata["blank_idx"] == len(PIECES)
    assert metadata["chunk_mel_frames"] == 112
    assert metadata["total_mel_frames"] == 121
    assert metadata["pre_encode_cache"] == 9
    assert metadata["cache_channel_shape"] == [1, 4, 14, 48]
    assert metadata["cache_time_shape"] == [1, 4, 48, 8]
    assert metadata["prompt_dictionary"] == dict(network.config.prompts)
    assert metadata["lang_tag_token_ids"] == [1, 2]
    pieces = json.loads((bundle / "tokenizer.json").read_text())
    assert [pieces[str(index)] for index in range(len(pieces))] == list(PIECES)
    folder = bundle / "coreml" / "native_weights"
    index = json.loads((folder / "weights_index.json").read_text())
    content = (folder / "weights.bin").read_bytes()
    assert sum(entry["bytes"] for entry in index.values()) == len(content)
    for name, tensor in network.state_dict().items():
        if name.startswith(("encoder_projector", "decoder", "joint")):
            entry = index[name]
            values = np.frombuffer(content, "<f2", offset=entry["offset"], count=tensor.numel())
            assert np.array_equal(values.reshape(entry["shape"]), tensor.numpy().astype(np.float16))


def test_config_of_the_english_layout_says_what_a_host_needs() -> None:
    config = json.loads((small_coreml_bundle("english", "fp16") / "config.json").read_text())
    assert config["streaming"]["chunk_mel_frames"] == 56
    assert config["streaming"]["total_mel_frames"] == 65
    assert config["decoding"]["blank_id"] == len(PIECES)
    assert config["decoding"]["max_symbols_per_frame"] == 10
    assert config["preprocessing"]["preemphasis"] == 0.97
    (cache,) = [v for v in config["models"]["encoder"]["inputs"] if v["name"] == "cache_last_channel"]
    assert cache == {"name": "cache_last_channel", "shape": [1, 4, 14, 48], "dtype": "float32"}


@pytest.mark.parametrize(
    ("layout", "att_context", "chunk", "expected"),
    [
        ("single", None, None, ((56, 13), 14)),
        ("single", (56, 3), 96, ((56, 3), 12)),
        ("english", None, None, ((56, 6), 7)),
        ("sharded", None, None, ((42, 13), 28)),
        ("sharded", None, 56, ((42, 13), 7)),
        ("watch", (56, 6), 112, ((56, 6), 14)),
    ],
)
@pytest.mark.filterwarnings("ignore:The model was not trained")
def test_call_sizes(
    layout: Layout, att_context: tuple[int, int] | None, chunk: int | None, expected: object
) -> None:
    assert call_size(small_config(), layout, att_context, chunk) == expected


@pytest.mark.parametrize(
    ("layout", "att_context", "chunk", "sentence"),
    [
        ("single", (56, 13), 100, "a multiple of 112"),
        ("single", (56, 13), 0, "a multiple of 112"),
        ("single", (0, 0), None, "left context"),
        ("single", (55, 13), None, "multiple of right"),
        ("sharded", None, 120, "560, 1120, 2240, 4480 ms"),
        ("sharded", (56, 3), 56, "whole chunks of 32"),
    ],
)
@pytest.mark.filterwarnings("ignore:The model was not trained")
def test_calls_that_cannot_be(
    layout: Layout, att_context: tuple[int, int] | None, chunk: int | None, sentence: str
) -> None:
    with pytest.raises(ContextError, match=sentence):
        call_size(small_config(), layout, att_context, chunk)


def test_too_few_layers_for_shards(tmp_path: Path) -> None:
    from tests.bundles import random_network

    with pytest.raises(BackendError, match="needs 4 layers at least; this model has 2"):
        export_coreml(random_network(True), Tokenizer(PIECES), tmp_path, source="random", layout="sharded")


def test_without_coremltools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coremltools", None)
    folder = tmp_path / "bundle"
    with pytest.raises(BackendError, match=r"pip install 'nemostream\[coreml\]'"):
        export_coreml(small_coreml_network(True), Tokenizer(PIECES), folder, source="random")
    assert not folder.exists()


@pytest.mark.parametrize("value", [7e4, float("nan")])
def test_a_weight_that_fp16_does_not_hold_is_named(tmp_path: Path, value: float) -> None:
    network = copy.deepcopy(small_coreml_network(True))
    network.joint.head.weight[3, 4] = value
    folder = tmp_path / "bundle"
    with pytest.raises(CheckpointError, match=r"joint\.head\.weight has a value of (70000|nan)"):
        export_coreml(network, Tokenizer(PIECES), folder, source="random")
    assert not folder.exists()


def test_a_damaged_program_is_named(tmp_path: Path) -> None:
    from nemostream.export.coreml.package import read_package

    path = tmp_path / "encoder.mlpackage"
    shutil.copytree(small_coreml_bundle("english", "fp16") / "encoder.mlpackage", path)
    (path / "Data/com.apple.CoreML/model.mlmodel").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match=r"encoder\.mlpackage"):
        read_package(path)
