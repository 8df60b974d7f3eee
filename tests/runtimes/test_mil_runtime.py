"""CoreML bundles of every layout, executed by the MIL runner, against the reference in uniform framing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("coremltools", reason="the extra coreml is not installed")

import nemostream
from nemostream.audio import load_audio
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.engine.model import Model
from nemostream.errors import AudioError, BackendError
from nemostream.export.coreml.bundle import graph_modules
from nemostream.export.coreml.weights import Weights
from nemostream.framing import UniformFramer
from nemostream.mil import Program, read_program
from nemostream.runtimes.coreml_contract import Graph, Layout, shard_layers
from nemostream.runtimes.mil import MilRuntime
from nemostream.runtimes.torch import load_network
from nemostream.verify.check import Report, verify
from nemostream.verify.ports import Port, open_port
from nemostream.verify.reference import Reference
from tests.coreml_bundles import (
    CONTEXT,
    coreml_bundle,
    coreml_checkpoint,
    embedded_coreml_bundle,
    small_coreml_bundle,
    with_stored_scales,
)

Inputs = dict[str, NDArray[Any]]
Change = Callable[[NDArray[Any]], NDArray[Any]]
LAYOUTS: tuple[Layout, ...] = ("single", "english", "sharded", "watch")
FP32 = 1e-4  # of outputs of size 1: only the order of additions differs
NOTICED = 100 * FP32  # what any wrong input has to do at least
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.flac"))
long = pytest.mark.long


def bundle_and_checkpoint(model: str, layout: Layout, weights: Weights = "fp16") -> tuple[Path, Checkpoint]:
    if model == "embedded":
        return embedded_coreml_bundle(layout, weights), coreml_checkpoint("embedded")
    made_from = coreml_checkpoint("small english" if layout == "english" else "small")
    return small_coreml_bundle(layout, weights), made_from


def take_stored_weights(module: torch.nn.Module, program: Program, hidden: int) -> int:
    """Give a module the compressed weights of its graph, each in place of the one that is nearest to it."""
    parameters = [parameter.data for parameter in module.parameters()]
    # of the prompt's first matrix only what takes frames is a matrix of the graph
    parameters += [
        weight[:, :hidden] for weight in parameters if weight.ndim == 2 and weight.shape[1] > hidden
    ]
    for name in program.compressed:
        value = torch.from_numpy(program.constant(name))
        near = [weight for weight in parameters if weight.numel() == value.numel()]
        nearest = min(near, key=lambda weight: float((weight.reshape(value.shape) - value).abs().max()))
        nearest.copy_(value.reshape(nearest.shape))
    return len(program.compressed)


@pytest.mark.parametrize(
    ("layout", "weights"),
    [*((layout, "fp16") for layout in LAYOUTS), ("sharded", "int8"), ("single", "palette8-kmeans")],
)
@pytest.mark.parametrize("model", ["small", pytest.param("embedded", marks=long)])
def test_every_graph_equals_the_reference_in_fp32(model: str, layout: Layout, weights: Weights) -> None:
    """Each alone, on random inputs and half-filled caches, with weights and constants as they are stored.

    Each of its inputs matters: a cache length that stays at 0, another slot, token or length, and numbers
    along the wrong axis are noticed in every graph.
    """
    bundle, checkpoint = bundle_and_checkpoint(model, layout, weights)
    contract = MilRuntime(bundle, fp16=False).contract
    network = with_stored_scales(load_network(checkpoint))
    compared, taken = set(), 0
    for name, module, kind in graph_modules(network, contract):
        graph = contract.graphs[name]
        inputs = random_inputs(graph, contract.window_mel_frames - 11, contract.frames - 2)
        program = read_program(bundle / graph.path, fp16=False)
        if kind != "preprocessor":
            module = module.half().float()
        with torch.no_grad():
            taken += take_stored_weights(module, program, network.config.hidden_size)
            results = module(*map(torch.from_numpy, inputs.values()))
        results = results if isinstance(results, tuple) else (results,)
        expected = {value.name: result.numpy() for value, result in zip(graph.outputs, results, strict=True)}
        assert largest_difference(program(inputs), expected) <= FP32, name
        for parameter in inputs:
            if parameter == "token_length" or (parameter == "prompt_id" and name in UNUSED_PROMPTS):
                continue
            wrong = (program(inputs | {parameter: value}) for value in wrongly(parameter, inputs[parameter]))
            assert any(largest_difference(found, expected) > NOTICED for found in wrong), (name, parameter)
        compared.add(name)
    assert compared == set(contract.graphs)
    assert bool(taken) == (weights != "fp16")


UNUSED_PROMPTS = [f"encoder_shard_{index}" for index in range(3)]  # all shards take it, the last one uses it
CACHE_LENGTHS = ("cache_len", "cache_last_channel_len")


def random_inputs(graph: Graph, window_length: int, valid: int) -> Inputs:
    """Numbers of size 1, caches that hold 9 frames, and calls that are not full."""
    random = np.random.default_rng(0)
    length = window_length if graph.name in ("encoder", "encoder_pre_encode") else valid
    whole = {"length": length, "audio_length": 9000, "prompt_id": 9, "token": 5, "targets": 5}
    whole |= dict.fromkeys(CACHE_LENGTHS, 9)
    inputs: Inputs = {}
    for value in graph.inputs:
        if value.dtype == "int32":
            inputs[value.name] = np.full(value.shape, whole.get(value.name, 1), np.int32)
        else:
            size = 0.1 if value.name == "audio" else 1.0
            inputs[value.name] = random.normal(0, size, value.shape).astype(np.float32)
    return inputs


def wrongly(parameter: str, value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """What should not be given instead of a value.

    Where there is one long axis only its numbers are shuffled. A graph that answers with a token alone may
    give the same one for many frames, so several are tried.
    """
    if value.dtype == np.int32:
        yield (
            np.zeros_like(value)
            if parameter in CACHE_LENGTHS
            else value + 8 * (160 if "audio" in parameter else 1)
        )
    elif min(value.shape[-2:]) > 1:
        yield np.swapaxes(value, -1, -2).reshape(value.shape)
    else:
        random = np.random.default_rng(1)
        for size in range(1, 17):
            yield size * random.permutation(value.reshape(-1)).reshape(value.shape)


def largest_difference(found: Inputs, expected: Inputs) -> float:
    """Over all outputs, each in units of its largest number or of 1."""
    return max(
        float(np.abs(found[name].astype(np.float64) - value).max()) / max(1.0, float(np.abs(value).max()))
        for name, value in expected.items()
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp16_rounding_stays_small_and_does_not_drift(layout: Layout) -> None:
    """Rounding to 11 bits errs by 2^-11 at most, and errors of n operations that do not depend on each other
    add up as their root: sqrt(n) 2^-11 of the largest number. Over fourteen calls with their caches."""
    bundle = small_coreml_bundle(layout)
    rounded, exact = MilRuntime(bundle), MilRuntime(bundle, fp16=False)
    framer = UniformFramer(rounded.call_frames, rounded.config.num_mel_bins)
    noise = np.random.default_rng(1).normal(
        -10, 3, (8 * rounded.call_frames * 14, rounded.config.num_mel_bins)
    )
    framer.push(noise.astype(np.float32))
    for runtime in (rounded, exact):
        runtime.resize(1)
        runtime.reset(0)
    operations = sum(len(rounded.programs[name].operations) for name in rounded.contract.encoder)
    errors = []
    for _ in range(14):
        call = framer.take(1)
        arguments = (call.mel[None], np.array([call.length]), np.array([0]), np.array([CONTEXT]))
        a, b = (runtime.encode([0], *arguments)[0] for runtime in (rounded, exact))
        errors.append(float(np.abs(a - b).max() / np.abs(b).max()))
    assert 0 < max(errors) < operations**0.5 * 2**-11
    assert np.mean(errors[7:]) < 2 * np.mean(errors[2:7])  # no more at the end than at the start


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("weights", [pytest.param("fp16", marks=long), "int8"])
def test_one_graph_and_shards_are_equal_bit_for_bit(weights: Weights, rounded: bool) -> None:
    """The published claim of seed 002: sharding changes nothing, in fp32 and with fp16 rounding."""
    one = MilRuntime(coreml_bundle("small", "english", weights, 112), fp16=rounded)
    many = MilRuntime(small_coreml_bundle("sharded", weights), fp16=rounded)
    window = np.random.default_rng(2).normal(-10, 3, (121, many.config.num_mel_bins)).astype(np.float32)
    states: list[dict[str, Any]] = [{}, {}]
    for _ in range(3):
        whole, parts = (
            runtime.encoder_step(state, window, 121, 9)
            for runtime, state in zip((one, many), states, strict=True)
        )
        np.testing.assert_array_equal(whole["encoder"]["outputs"], parts["encoder_shard_3"]["encoded"])


def stuck(value: NDArray[Any]) -> NDArray[Any]:
    return np.zeros_like(value)


def other_slot(value: NDArray[Any]) -> NDArray[Any]:
    return value + 1


def wrong_axis(value: NDArray[Any]) -> NDArray[Any]:
    return np.swapaxes(value, -1, -2).reshape(value.shape)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        *(("small", layout) for layout in ("single", "english", "sharded")),
        pytest.param("small", "watch", marks=long),
        *(pytest.param("embedded", layout, marks=long) for layout in LAYOUTS),
    ],
)
def test_what_is_wrong_is_found(model: str, layout: Layout) -> None:
    """Negative controls in each encoder graph: `verify` fails at the stage where that graph ends."""
    bundle, checkpoint = bundle_and_checkpoint(model, layout)
    port = open_port(str(bundle), backend="mil")
    runtime = port.runtime
    assert isinstance(runtime, MilRuntime)
    noise = np.random.default_rng(0).normal(0, 0.1, 128_000).astype(np.float32)
    samples = noise if model == "small" else load_audio(EXAMPLES[0])

    def verified(port: Port, seconds: int) -> Report:
        clip = {"clip": samples[: 16_000 * seconds]}
        return verify(port, checkpoint, clip, contexts=[runtime.att_context])

    sound = verified(port, 8)
    assert sound.passed, sound.first_divergence
    controls: list[tuple[str, str, Change]] = [
        (name, parameter, stuck if parameter in CACHE_LENGTHS else wrong_axis)
        for name in runtime.contract.encoder
        for parameter in runtime.contract.graphs[name].state
    ]
    layers = runtime.config.num_layers
    prompted = "prompt" if runtime.config.has_prompt else f"layers.{layers - 1}"
    ends = {"encoder": f"layers.{layers - 1}" if layout == "single" else prompted}
    if layout == "single":
        controls.append(("prompt_projection", "prompt_id", other_slot))
        ends["prompt_projection"] = "runtime"
    elif layout != "english":
        controls += [("encoder_pre_encode", "mel", wrong_axis), ("encoder_shard_3", "prompt_id", other_slot)]
        ends = {f"encoder_shard_{n}": f"layers.{shard[-1]}" for n, shard in enumerate(shard_layers(layers))}
        ends |= {"encoder_pre_encode": "pre_encode", "encoder_shard_3": prompted}
    quick = replace(port, decoder="tokens")  # the encoder is what is wrong
    for graph, parameter, change in controls:
        program = runtime.programs[graph]
        runtime.programs[graph] = lambda inputs, sound=program, name=parameter, change=change: sound(  # type: ignore[assignment, misc]
            inputs | {name: change(inputs[name])}
        )
        report = verified(quick, 3)
        runtime.programs[graph] = program
        assert report.first_divergence is not None, (graph, parameter)
        assert report.first_divergence.stage == ends[graph], (graph, parameter)


@pytest.mark.parametrize(
    ("graph", "parameter", "change"),
    [
        ("preprocessor", "audio", lambda audio: 1.2 * audio),
        ("decoder_joint_argmax", "h_in", stuck),
        ("decoder_joint_argmax", "encoder", lambda frame: np.flip(frame, 1)),
        ("decoder", "c_in", stuck),
        ("joint_noencproj_batched", "encoder_proj", lambda frames: np.flip(frames, 1)),
        ("encoder_shard_1", "length", lambda length: length - 1),
    ],
)
def test_every_graph_is_verified_alone(graph: str, parameter: str, change: Change) -> None:
    """Also those that no runtime calls: only the row of the one that is wrong says so."""
    bundle, checkpoint = bundle_and_checkpoint("small", "sharded", "int8")
    port = replace(open_port(str(bundle), backend="mil"), decoder="tokens")
    runtime = port.runtime
    assert isinstance(runtime, MilRuntime)
    sound = read_program(bundle / runtime.contract.graphs[graph].path)
    runtime.programs[graph] = lambda inputs: sound(inputs | {parameter: change(inputs[parameter])})  # type: ignore[assignment]
    clip = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)
    report = verify(port, checkpoint, {"clip": clip}, contexts=[runtime.att_context])
    alone = {stage.stage: stage.passed for stage in report.stages if stage.stage.startswith("graph ")}
    assert alone == {f"graph {name}": name != graph for name in runtime.contract.graphs}
    assert not report.passed


@pytest.mark.parametrize("samples", [0, 8000])
def test_a_clip_of_less_than_a_call_is_named(samples: int) -> None:
    """Layout "single" can't hear a shorter last call, so nothing would be compared."""
    bundle, checkpoint = bundle_and_checkpoint("small", "single")
    port = open_port(str(bundle), backend="mil")
    with pytest.raises(AudioError, match=rf"clip is too short .* {samples // 16} ms, .* takes 560 ms"):
        verify(port, checkpoint, {"clip": np.zeros(samples, np.float32)}, contexts=[CONTEXT])


@long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weights", ["fp16", "int8", "palette8"])
def test_recordings_give_the_tokens_of_the_reference(layout: Layout, weights: Weights) -> None:
    """The whole pipeline from the bundle, fp16 rounding included; "single" but for its inexact last call."""
    port = open_port(str(embedded_coreml_bundle(layout, weights)), backend="mil")
    clips = {path.name: load_audio(path) for path in EXAMPLES}
    report = verify(port, coreml_checkpoint("embedded"), clips)
    stages = {stage.stage: stage for stage in report.stages}
    assert report.passed, report.first_divergence
    assert stages["tokens"].detail is None
    assert stages["text"].passed


def test_packets_do_not_change_the_text_and_the_end_is_heard() -> None:
    """The tokens of the reference in uniform framing, through sessions of both."""
    model = nemostream.load(embedded_coreml_bundle("english"), backend="mil")
    samples = load_audio(EXAMPLES[0])
    whole = model.transcribe(samples)
    with model.stream() as session:
        for start in range(0, len(samples), 777):
            session.feed(samples[start : start + 777])
        session.finish()
        assert session.transcript().tokens == whole.tokens
    reference = Model(Reference(coreml_checkpoint("embedded"), "uniform"))  # type: ignore[arg-type]
    expected = reference.transcribe(samples, att_context_size=(56, 13))
    assert [token.id for token in whole.tokens] == [token.id for token in expected.tokens]
    assert whole.text


def test_what_is_refused() -> None:
    bundle = small_coreml_bundle("sharded")
    runtime = MilRuntime(bundle)
    runtime.resize(1)
    with pytest.raises(BackendError, match="only"):
        runtime.encode(
            [0], np.zeros((1, 17, 128), np.float32), np.array([17]), np.array([0]), np.array([CONTEXT])
        )
    watch = MilRuntime(small_coreml_bundle("watch"))
    with pytest.raises(BackendError, match="beam"):
        watch.joint_logits(np.zeros((1, 1, 4), np.float32), np.zeros((1, 9), np.float32))
    with pytest.raises(BackendError, match="a setting of the backend mil"):
        nemostream.load(bundle, activations="fp32")
    exact = nemostream.load(bundle, backend="mil", activations="fp32").engine.runtime
    assert isinstance(exact, MilRuntime)
    assert exact.arithmetic == "fp32"
    with pytest.warns(UserWarning, match="MIL runner"):
        assert nemostream.load(bundle).backend == "mil"
