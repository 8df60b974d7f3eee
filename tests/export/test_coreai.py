"""Bundles for Core AI: the contracts of both layouts, the precision of weights, the script for a Mac."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nemostream.checkpoints.bundle import read_manifest
from nemostream.errors import BackendError, ContextError
from nemostream.export.coreai.bundle import export_coreai
from nemostream.export.coreai.host import write_build_script
from nemostream.export.coreai.precision import activations_for, prepared
from nemostream.runtimes.coreai_assets import Array
from nemostream.runtimes.coreai_graphs import Layout
from nemostream.text.tokenizer import Tokenizer
from nemostream.verify.check import verify
from nemostream.verify.clips import synthetic_sound
from nemostream.verify.features import exact_log_mel
from nemostream.verify.ports import open_port
from tests.cli.conftest import Run, run
from tests.conftest import REPOSITORY
from tests.models import PIECES, small_config, small_network

__all__ = ["run"]  # the fixture

GOLDEN = REPOSITORY / "tests" / "data" / "golden"
needs_coreai = pytest.mark.usefixtures("coreai")


@pytest.fixture(scope="module")
def coreai() -> None:
    pytest.importorskip("coreai_torch", reason="the extra coreai is not installed")


@needs_coreai
def test_the_six_graphs_have_the_published_contract() -> None:
    from tests.coreai_bundles import coreai_bundle, coreai_runtime

    signatures = {
        (graph, entry): coreai_runtime("six").assets.signature(graph, entry)
        for graph, entry in coreai_runtime("six").assets.entries()
    }
    caches = {"k_cache": (2, 4, 56, 24), "v_cache": (2, 4, 56, 24), "conv_cache": (2, 96, 8)}
    lstm = {"h": (2, 1, 64), "c": (2, 1, 64)}
    stem = {"conv1_cache": (1, 1, 1, 128), "conv2_cache": (1, 48, 1, 65), "conv3_cache": (1, 48, 1, 33)}
    mask = {"neg_mask": (1, 1, 4, 60)}
    expected = {
        ("stream_pre_first", "main"): ({"mel": (1, 25, 128)}, {"embeds": (1, 4, 96)} | out(stem)),
        ("stream_pre", "main"): ({"mel": (1, 32, 128)} | stem, {"embeds": (1, 4, 96)} | out(stem)),
        ("stream_conformer_a", "main"): (
            {"x": (1, 4, 96)} | mask | caches,
            {"x_out": (1, 4, 96)} | out(caches),
        ),
        ("stream_conformer_b", "main"): (
            {"x": (1, 4, 96)} | mask | caches | {"one_hot": (1, 128)},
            {"enc_proj": (1, 4, 64)} | out(caches),
        ),
        ("predict", "main"): ({"token": (1, 1)} | lstm, {"dec_out": (1, 64)} | out(lstm)),
        ("joint", "main"): ({"dec_out": (1, 64), "enc_frame": (1, 64)}, {"token_logits": (1, 257)}),
    }
    found = {
        key: tuple({name: shape for name, (shape, _) in side.items()} for side in signatures[key])
        for key in expected
    }
    assert found == expected
    assert signatures["predict", "main"][0]["token"] == ((1, 1), "int32")
    manifest = read_manifest(coreai_bundle("six"))
    assert (manifest.runtime, manifest.layout, manifest.framing) == ("coreai", "six", "native")
    assert manifest.max_frames == 4
    assert {name.split("/")[0] for name in manifest.files} == {"macos", "tokens.txt", "build_ios.sh"}


def out(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{name}_out": shape for name, shape in shapes.items()}


@needs_coreai
def test_the_shards_have_the_published_contract() -> None:
    from tests.coreai_bundles import coreai_bundle, coreai_runtime

    assets = coreai_runtime("sharded").assets
    inputs, outputs = assets.signature("encoder_shard_0_fp32")
    assert inputs == {
        "mel": ((1, 128, 65), "float32"),
        "length": ((1,), "int32"),
        "cache_channel": ((1, 1, 42, 96), "float32"),
        "cache_time": ((1, 1, 96, 8), "float32"),
        "cache_len": ((1,), "int32"),
        "prompt_id": ((1,), "int32"),
    }
    assert set(outputs) == {
        "hidden_out",
        "length_out",
        "cache_channel_out",
        "cache_time_out",
        "cache_len_out",
    }
    inputs, outputs = assets.signature("encoder_shard_3_fp32")
    assert inputs["hidden"] == ((1, 7, 96), "float32")
    assert inputs["prompt_id"] == ((1,), "int32")
    assert outputs["encoded"] == ((1, 96, 7), "float32")
    inputs, outputs = assets.signature("decoder_joint")
    assert inputs["encoder"] == ((1, 96, 7), "float32")
    assert outputs["logits"] == ((1, 7, 257), "float32")
    metadata = json.loads((coreai_bundle("sharded") / "metadata.json").read_text())
    expected = {
        "total_mel_frames": 65,
        "chunk_mel_frames": 56,
        "pre_encode_cache": 9,
        "att_context_size": [42, 13],
        "cache_channel_shape": [1, 4, 42, 96],
        "cache_time_shape": [1, 4, 96, 8],
        "blank_idx": 256,
    }
    assert {key: metadata[key] for key in expected} == expected
    assert metadata["prompt_dictionary"]["de-DE"] == 9
    pieces = json.loads((coreai_bundle("sharded") / "tokenizer.json").read_text())
    assert len(pieces) == 256


@needs_coreai
def test_a_host_can_compute_the_features_from_the_constants() -> None:
    """By the recipe of `write_host_files`, in double precision, against the definition of the front end."""
    from tests.coreai_bundles import coreai_bundle

    folder = coreai_bundle("sharded") / "coreai"
    window = np.fromfile(folder / "mel_window.f32", "<f4")
    filters = np.fromfile(folder / "mel_filterbank.f32", "<f4").reshape(128, 257)
    samples = synthetic_sound(0.5)
    emphasised = samples.astype(np.float64)
    emphasised[1:] -= 0.97 * samples[:-1]
    padded = np.pad(emphasised, 256)
    frames = [padded[160 * t : 160 * t + 512] * window for t in range(len(samples) // 160)]
    power = np.abs(np.fft.rfft(frames)) ** 2
    mel = np.log(power @ filters.T + 2.0**-24)
    assert np.abs(mel - exact_log_mel(samples, 128, 0.97)).max() < 1e-4


@needs_coreai
@pytest.mark.parametrize("layout", ["six", "sharded"])
def test_verify_passes_what_is_right_and_names_what_is_not(layout: str) -> None:
    from tests.coreai_bundles import checkpoint_of, coreai_bundle

    port = open_port(str(coreai_bundle(layout)))  # type: ignore[arg-type]
    clips = {"synthetic": synthetic_sound(1.5)}
    report = verify(port, checkpoint_of(), clips)
    assert report.passed
    stages = {stage.stage for stage in report.stages}
    assert {"features", "layers.1", "projection", "runtime", "predictor", "joint", "tokens", "text"} <= stages
    assert ("fused_joint" in stages) == (layout == "sharded")

    altered = checkpoint_of()
    name = "encoder.layers.2.conv.pointwise_conv1.weight"
    tensors = {**altered.tensors, name: np.asarray(altered.tensors[name])[::-1].copy()}
    report = verify(port, type(altered)(**{**vars(altered), "tensors": tensors}), clips)
    assert report.first_divergence is not None
    # the first place that can be seen after the third layer
    expected = "projection" if layout == "six" else "layers.2"
    assert report.first_divergence.stage == expected


@needs_coreai
@pytest.mark.parametrize(
    ("layout", "graph", "entry", "output"),
    [
        ("six", "joint", "main", "token_logits"),
        ("six", "stream_pre", "last", "conv2_cache_out"),
        ("sharded", "decoder_joint", "main", "h_out"),
    ],
)
def test_every_entry_point_is_verified_alone(
    layout: Layout, graph: str, entry: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that apps call and the runtime does not: only the row of the one that is wrong says so."""
    from nemostream.runtimes.coreai import CoreAiRuntime
    from tests.coreai_bundles import checkpoint_of, coreai_bundle

    port = open_port(str(coreai_bundle(layout)))
    assert isinstance(port.runtime, CoreAiRuntime)
    assets, sound = port.runtime.assets, port.runtime.assets.call

    def call(name: str, inputs: Mapping[str, Array], entry_point: str = "main") -> dict[str, Array]:
        result = sound(name, inputs, entry_point)
        return result | ({output: result[output] + 0.01} if (name, entry_point) == (graph, entry) else {})

    monkeypatch.setattr(assets, "call", call)
    report = verify(port, checkpoint_of(), {"synthetic": synthetic_sound(1.92)})
    alone = {stage.stage: stage.passed for stage in report.stages if stage.stage.startswith("graph ")}
    assert len(alone) == len(assets.entries())
    assert [stage for stage, passed in alone.items() if not passed] == [f"graph {graph} {entry}"]


@needs_coreai
def test_int8_does_not_clip_the_largest_weight() -> None:
    layer = small_network(small_config()).encoder.layers[0]
    quantised = prepared(layer, "int8", "fp32")
    matrices = {"conv.pointwise_conv1", "conv.pointwise_conv2", "feed_forward1.linear1", "self_attn.q_proj"}
    for name in matrices:
        weight = layer.get_submodule(name).weight.flatten(1)  # type: ignore[operator]
        stored = quantised.get_submodule(name).weight.flatten(1)  # type: ignore[operator]
        step = weight.abs().amax(dim=1, keepdim=True) / 127
        assert ((weight - stored).abs() <= 0.5001 * step).all()
        assert not torch.equal(weight, stored)
    kept = "conv.depthwise_conv"
    assert torch.equal(layer.get_submodule(kept).weight, quantised.get_submodule(kept).weight)  # type: ignore[arg-type]


def test_fp16_refuses_what_it_cannot_hold() -> None:
    from nemostream.errors import CheckpointError

    linear = nn.Linear(2, 2)
    linear.weight.data[0, 0] = 1e5
    with pytest.raises(CheckpointError, match="too large for fp16"):
        prepared(linear, "fp16", "fp16")


@pytest.mark.parametrize(
    ("weights", "activations", "expected"),
    [("fp32", None, "fp32"), ("fp16", None, "fp16"), ("int8", None, "fp16"), ("int8", "fp32", "fp32")],
)
def test_what_is_computed_in(weights: str, activations: str | None, expected: str) -> None:
    assert activations_for(weights, activations) == expected


@pytest.mark.parametrize(("weights", "activations"), [("int4", None), ("fp32", "fp16"), ("int8", "bf16")])
def test_precisions_that_make_no_sense(weights: str, activations: str | None) -> None:
    with pytest.raises(BackendError):
        activations_for(weights, activations)


@needs_coreai
def test_exports_that_cannot_be(tmp_path: Path) -> None:
    network, tokenizer = small_network(small_config()), Tokenizer(PIECES)

    def export(**options: object) -> None:
        export_coreai(network, tokenizer, tmp_path / "out", source="random", **options)  # type: ignore[arg-type]

    with pytest.raises(BackendError, match="needs 4 layers at least; this model has 2"):
        export(layout="sharded")
    with pytest.raises(BackendError, match="valid ones are: six, sharded"):
        export(layout="seven")
    with pytest.raises(ContextError, match="560, 1120, 2240, 4480 ms; 320 ms is none"):
        export(layout="sharded", latency=320)
    assert not (tmp_path / "out").exists()


def test_without_the_converter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "coreai_torch", None)
    network = small_network(small_config())
    with pytest.raises(BackendError, match=r"pip install 'nemostream\[coreai\]'"):
        export_coreai(network, Tokenizer(PIECES), tmp_path / "out", source="random")
    assert not (tmp_path / "out").exists()


def test_the_script_for_a_mac(tmp_path: Path) -> None:
    """With a stand-in for Apple's compiler, which writes what it was asked."""
    (name,) = write_build_script(tmp_path, "native", "fp16")
    for graph in ("stream_pre_first", "stream_pre", "predict", "joint"):
        (tmp_path / "macos" / f"{graph}.aimodel").mkdir(parents=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "xcrun").write_text('#!/bin/sh\necho "$@" >> asked\n')
    (tools / "xcrun").chmod(0o755)
    subprocess.run([tmp_path / name, "h17p"], env={"PATH": f"{tools}:/usr/bin:/bin"}, check=True)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[2] for line in asked] == [
        "macos/stream_conformer_a.aimodel",
        "macos/stream_conformer_b.aimodel",
    ]
    assert all("--architecture h17p" in line and "--platform iOS" in line for line in asked)
    assert {path.name for path in (tmp_path / "ios").iterdir()} == {
        "stream_pre_first.aimodel",
        "stream_pre.aimodel",
        "predict.aimodel",
        "joint.aimodel",
    }


@needs_coreai
@pytest.mark.long
def test_commands(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    arguments = ("--to", "coreai", "--weights", "fp32", "--latency", "80", "-o", folder)
    assert run("convert", GOLDEN / "multi.nemo", *arguments).code == 0
    result = run("inspect", folder)
    assert result.code == 0
    assert "graph stream_conformer_b.aimodel, entry point main" in result.out
    assert "one_hot  NDArray (Float32, 1 × 128)" in result.out
    result = run("transcribe", "--backend", "coreai", "-m", folder, "-l", "de-DE", GOLDEN / "a0.wav")
    assert result.code == 0
    assert result.out.strip()
    assert run("verify", folder, "--against", GOLDEN / "multi.nemo", "--seconds", "1").code == 0
    result = run("transcribe", "-m", folder, "--latency", "320", GOLDEN / "a0.wav")
    assert result.code == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--to", "onnx", "--layout", "six"), "--layout is for --to coreai"),
        (("--to", "mlx", "--activations", "fp32"), "--activations is for --to coreai only"),
        (("--to", "coreai", "--latency", "100"), "not a multiple of 80 ms"),
        (("--to", "coreai", "--weights", "int4"), "--to coreai stores weights as fp32 or fp16 or int8 only"),
    ],
)
def test_usage_errors(run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = run("convert", GOLDEN / "multi.nemo", *arguments, "-o", tmp_path / "out")
    assert result.code == 2
    assert sentence in result.err
