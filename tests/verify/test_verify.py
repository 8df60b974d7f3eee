"""Broken bundles are caught, and the stage that is broken is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from nemostream.checkpoints.bundle import MANIFEST, FileRecord, read_manifest
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.files import write_json
from nemostream.checkpoints.huggingface import save_huggingface
from nemostream.export.onnx import export_onnx
from nemostream.model.attention import MASKED_SCORE
from nemostream.model.network import Network
from nemostream.runtimes import onnx_graphs as graphs
from nemostream.runtimes.torch import TorchRuntime, load_network
from nemostream.text.tokenizer import Tokenizer
from nemostream.verify.check import Report, verify
from nemostream.verify.clips import synthetic_sound
from nemostream.verify.ports import Port, open_port
from nemostream.verify.stages import FUSED_JOINT, all_stages
from tests.bundles import golden_bundle, random_bundle
from tests.cli.conftest import Run
from tests.models import PIECES, small_checkpoint, small_config, small_network

CLIPS = {"synthetic": synthetic_sound(2.5)}
CONTEXTS = ((56, 3), (56, 0))


def check(folder: Path, checkpoint: Checkpoint | None = None) -> Report:
    return verify(
        open_port(str(folder)), checkpoint or small_checkpoint(small_config()), CLIPS, contexts=CONTEXTS
    )


def export(folder: Path, network: Network | None = None, pieces: tuple[str, ...] = PIECES) -> Path:
    export_onnx(network or small_network(small_config()), Tokenizer(pieces), folder, source="random")
    return folder


@pytest.mark.parametrize("weights", ["fp32", "fp16"])
@pytest.mark.parametrize("prompt", [True, False])
def test_a_sound_bundle_agrees_at_every_stage(prompt: bool, weights: str) -> None:
    checkpoint = small_checkpoint(small_config(prompt=prompt))
    report = check(random_bundle(prompt, weights), checkpoint)  # type: ignore[arg-type]
    assert report.first_divergence is None
    assert [stage.stage for stage in report.stages] == all_stages(checkpoint.config)
    assert all(stage.compared for stage in report.stages)


def test_an_fp16_bundle_is_not_the_fp32_network(tmp_path: Path) -> None:
    """The gates are tight enough to see rounding, where none is expected."""
    port = open_port(str(random_bundle(True, "fp16")))
    report = verify(replace(port, weights="fp32"), small_checkpoint(small_config()), CLIPS, contexts=CONTEXTS)
    assert report.first_divergence is not None


def test_a_bundle_of_a_golden_model_agrees(golden: Path) -> None:
    from nemostream.checkpoints import load_checkpoint

    folder = golden / "en_hf"
    _, bundle = golden_bundle(folder)
    assert check(bundle, load_checkpoint(folder)).passed


def test_swapped_glu_halves(tmp_path: Path) -> None:
    network = small_network(small_config())
    weight = network.encoder.layers[1].conv.pointwise_conv1.weight
    weight.copy_(torch.cat(weight.chunk(2)[::-1]))
    report = check(export(tmp_path, network))
    assert report.first_divergence is not None
    assert report.first_divergence.stage == "layers.1.conv.gated"


def test_wrong_mask_sign(tmp_path: Path) -> None:
    """What should be hidden is shown, and the other way round."""
    path = export(tmp_path) / graphs.ENCODER
    model = onnx.load(path)
    weights = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    swapped = 0
    for node in model.graph.node:
        if node.op_type == "Where" and any(
            float(np.min(weights.get(n, 0))) == MASKED_SCORE for n in node.input
        ):
            node.input[1], node.input[2] = node.input[2], node.input[1]
            swapped += 1
    assert swapped
    onnx.save(model, path)
    manifest = read_manifest(tmp_path, verify=False)
    files = {name: FileRecord.of(tmp_path / name) for name in manifest.files}
    write_json(tmp_path / MANIFEST, replace(manifest, files=files).to_dict())
    report = check(tmp_path)
    assert report.first_divergence is not None
    assert report.first_divergence.stage == "layers.0.self_attn"


def test_stale_tokenizer(tmp_path: Path) -> None:
    pieces = list(PIECES)
    pieces[7], pieces[30] = pieces[30], pieces[7]
    report = check(export(tmp_path, pieces=tuple(pieces)))
    assert report.first_divergence is not None
    assert report.first_divergence.stage == "tokenizer"
    assert "piece 7 is 's7', expected '▁w4'" in str(report.first_divergence.detail)


FLIPS: dict[str, Callable[[Network], torch.Tensor]] = {
    "pre_encode": lambda n: n.encoder.subsampling.layers[1].depthwise_conv.weight,
    "layers.1.feed_forward2": lambda n: n.encoder.layers[1].feed_forward2.linear1.weight,
    "layers.0.self_attn": lambda n: n.encoder.layers[0].self_attn.relative_k_proj.weight,
    "layers.1": lambda n: n.encoder.layers[1].norm_out.weight,
    "prompt": lambda n: n.prompt_projector.linear_2.weight,
    "projection": lambda n: n.encoder_projector.weight,
    "predictor": lambda n: n.decoder.lstm.weight_hh_l1,
    "joint": lambda n: n.joint.head.weight,
}


@pytest.mark.parametrize("stage", FLIPS)
def test_one_flipped_weight(tmp_path: Path, stage: str) -> None:
    network = small_network(small_config())
    flat = FLIPS[stage](network).view(-1)
    flat[flat.abs().argmax()] *= -1
    report = check(export(tmp_path, network))
    assert report.first_divergence is not None
    assert report.first_divergence.stage == stage
    assert "context [56, 3]" in str(report.first_divergence.where)


def test_a_cache_that_forgets_shows_in_a_later_chunk() -> None:
    """The graph is right and the runtime around it is not."""
    checkpoint = small_checkpoint(small_config())

    class Forgetful(TorchRuntime):
        calls = 0

        def encode(self, slots, mel, *rest):  # type: ignore[no-untyped-def]
            self.calls += 1
            if self.calls == 3:
                self.reset(slots[0])
            return super().encode(slots, mel, *rest)

    runtime = Forgetful(checkpoint)
    report = verify(Port("forgetful", runtime, "fp32"), checkpoint, CLIPS, contexts=((56, 3),))
    assert report.first_divergence is not None
    assert report.first_divergence.stage == "runtime"
    assert "chunk 2" in str(report.first_divergence.where)


def test_numbers_that_are_not_finite_are_named() -> None:
    checkpoint = small_checkpoint(small_config())

    class Overflowing(TorchRuntime):
        def joint_logits(self, encoded, predicted):  # type: ignore[no-untyped-def]
            logits = super().joint_logits(encoded, predicted)
            logits[..., 3] = np.nan
            return logits

    report = verify(Port("half", Overflowing(checkpoint), "fp32"), checkpoint, CLIPS, contexts=((56, 3),))
    assert report.first_divergence is not None
    assert report.first_divergence.stage == "joint"
    assert report.first_divergence.detail == "numbers that are not finite"
    json.dumps(report.to_dict(), allow_nan=False)


def test_uniform_framing_agrees() -> None:
    checkpoint = small_checkpoint(small_config())
    port = Port("uniform", TorchRuntime(checkpoint, framing="uniform"), "fp32")
    assert verify(port, checkpoint, CLIPS, contexts=((56, 3),)).passed


def test_another_configuration_is_named_first() -> None:
    checkpoint = small_checkpoint(small_config())
    other = Checkpoint(
        replace(checkpoint.config, preemphasis=0.0),
        checkpoint.tensors,
        checkpoint.tokenizer,
        "other",
        "huggingface",
    )
    report = verify(Port("other", TorchRuntime(other), "fp32"), checkpoint, CLIPS)
    assert report.first_divergence is not None
    assert report.first_divergence.stage == "config"
    assert "preemphasis" in str(report.first_divergence.detail)


# --- MLX --------------------------------------------------------------------------------------------------


def mlx_port(checkpoint: Checkpoint) -> Port:
    pytest.importorskip("mlx.core")
    from nemostream.runtimes.mlx import MAX_FRAMES, MlxRuntime
    from nemostream.verify.mlx_stages import MlxStages

    runtime = MlxRuntime(checkpoint)
    return Port("mlx", runtime, "fp32", MlxStages(checkpoint, runtime.left_context, MAX_FRAMES))


@pytest.mark.parametrize("prompt", [True, False])
def test_mlx_agrees_at_every_stage(prompt: bool) -> None:
    checkpoint = small_checkpoint(small_config(prompt=prompt))
    report = verify(mlx_port(checkpoint), checkpoint, CLIPS, contexts=CONTEXTS)
    assert report.first_divergence is None
    assert [stage.stage for stage in report.stages] == all_stages(checkpoint.config)
    assert all(stage.compared for stage in report.stages)


@pytest.mark.parametrize("stage", FLIPS)
def test_one_flipped_weight_in_mlx(stage: str) -> None:
    network = small_network(small_config())
    flat = FLIPS[stage](network).view(-1)
    flat[flat.abs().argmax()] *= -1
    tensors = {name: value.numpy().copy() for name, value in network.state_dict().items()}
    sound = small_checkpoint(small_config())
    broken = replace(sound, tensors=tensors)
    report = verify(mlx_port(broken), sound, CLIPS, contexts=((56, 3),))
    assert report.first_divergence is not None
    assert report.first_divergence.stage == stage


def test_torch_is_compared_inside_its_layers_too(tmp_path: Path) -> None:
    save_huggingface(small_checkpoint(small_config()), tmp_path)
    report = verify(open_port(str(tmp_path)), small_checkpoint(small_config()), CLIPS, contexts=((56, 3),))
    assert report.passed
    assert [stage.stage for stage in report.stages if stage.stage != FUSED_JOINT] == all_stages(
        small_config()
    )


def test_command_line(run: Run, tmp_path: Path) -> None:
    save_huggingface(small_checkpoint(small_config()), tmp_path / "checkpoint")
    against = ("--against", tmp_path / "checkpoint", "--att-context", 56, 3, "--seconds", 2)
    good = run("verify", random_bundle(True), *against)
    assert (good.code, "agrees" in good.err) == (0, True)
    assert "DIVERGES" not in good.out
    network = load_network(small_checkpoint(small_config()))
    network.encoder.layers[0].conv.pointwise_conv2.weight[5, 5] += 1.0
    export(tmp_path / "broken", network)
    bad = run("verify", tmp_path / "broken", *against, "--layers")
    assert bad.code == 8
    assert "first diverges at layers.0.conv:" in bad.err
    assert "layers.1.feed_forward1" in bad.out
    report = json.loads(run("verify", tmp_path / "broken", *against, "--json").out)
    assert (report["passed"], report["first_divergence"]) == (False, "layers.0.conv")
    stages = {stage["stage"]: stage["passed"] for stage in report["stages"]}
    assert stages["layers.0.conv.gated"]
    assert not stages["layers.1.feed_forward1"]
    checkpoint = run("verify", tmp_path / "checkpoint", *against)
    assert checkpoint.code == 0
    wrong = run("verify", tmp_path / "checkpoint", *against, "--backend", "onnx")
    assert (wrong.code, "convert it first" in wrong.errors[0]) == (7, True)
    assert run("verify", random_bundle(True), "--against", tmp_path / "nowhere").code == 4
    assert run("verify", random_bundle(True), *against, "--audio", tmp_path / "nowhere.wav").code == 3
    assert run("verify", random_bundle(True), *against, "--language", "xx-XX").code == 6
    assert run("verify", random_bundle(True), *against[:2], "--seconds", "0").code == 2
    assert run("verify", random_bundle(True), *against, "--tolerance", "-1").code == 2
    assert run("verify", tmp_path / "missing", *against).code == 4
