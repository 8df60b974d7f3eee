"""CoreML bundles of every layout, executed by the MIL runner, against the reference in uniform framing."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("coremltools", reason="the extra coreml is not installed")

import nemostream
from nemostream.audio import load_audio
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.engine.model import Model
from nemostream.errors import BackendError
from nemostream.export.coreml.bundle import export_coreml, graph_modules
from nemostream.export.coreml.weights import Weights
from nemostream.framing import UniformFramer
from nemostream.loading import embedded_checkpoint
from nemostream.mil import Program, read_program
from nemostream.runtimes.coreml_bundle import CoreMlBundleRuntime
from nemostream.runtimes.coreml_contract import Layout
from nemostream.runtimes.mil import MilRuntime
from nemostream.runtimes.torch import load_network
from nemostream.text.tokenizer import Tokenizer
from nemostream.verify.check import Report, verify
from nemostream.verify.ports import _coreml_port, open_port
from nemostream.verify.reference import Reference
from tests.coreml_bundles import CONTEXT, small_coreml_bundle, small_coreml_network
from tests.models import PIECES

Inputs = dict[str, Any]
Embedded = Callable[[Layout, Weights], tuple[Path, Checkpoint]]
LAYOUTS: tuple[Layout, ...] = ("single", "english", "sharded", "watch")
FP32 = 1e-4  # of outputs of size 1: only the order of additions differs
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.flac"))


def small_checkpoint(layout: Layout) -> Checkpoint:
    network = small_coreml_network(layout != "english")
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    return Checkpoint(
        config=network.config,
        tensors=tensors,
        tokenizer=Tokenizer(PIECES),
        source="random",
        format="huggingface",
    )


def report_of(
    runtime: CoreMlBundleRuntime, checkpoint: Checkpoint, weights: str, seconds: float = 8.0
) -> Report:
    """`verify` on noise, over many chained calls."""
    noise = np.random.default_rng(0).normal(0, 0.1, round(16_000 * seconds)).astype(np.float32)
    port = _coreml_port("bundle", runtime, weights)
    return verify(port, checkpoint, {"noise": noise}, contexts=[CONTEXT])


class RoundedSize(int):
    """A head size whose power, the scale of attention, is rounded to fp16 as the constant of a graph is."""

    def __pow__(self, exponent: float) -> float:  # type: ignore[override]
        return float(np.float16(int(self) ** exponent))


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
def test_every_graph_equals_the_reference_in_fp32(layout: Layout, weights: Weights) -> None:
    """Each alone, on random inputs and half-filled caches, with weights and constants as they are stored."""
    bundle = small_coreml_bundle(layout, weights)
    runtime = MilRuntime(bundle, fp16=False)
    network = copy.deepcopy(small_coreml_network(layout != "english"))
    for layer in network.encoder.layers:
        layer.self_attn.head_size = RoundedSize(layer.self_attn.head_size)
    whole = {
        "length": runtime.call_frames - 2,
        "audio_length": 9000,
        "prompt_id": 9,
        "token": 5,
        "targets": 5,
    }
    whole |= {"cache_last_channel_len": 9, "cache_len": 9}
    generator, compared, taken = torch.Generator().manual_seed(0), set(), 0
    for name, module, kind in graph_modules(network, runtime.contract):
        inputs = {}
        for value in runtime.contract.graphs[name].inputs:
            if value.dtype == "int32":
                number = whole.get(value.name, 1)
                if value.name == "length" and name in ("encoder", "encoder_pre_encode"):
                    number = runtime.contract.window_mel_frames - 11
                inputs[value.name] = torch.full(value.shape, number, dtype=torch.int32)
            else:
                inputs[value.name] = torch.randn(value.shape, generator=generator)
                inputs[value.name] *= 0.1 if value.name == "audio" else 1.0
        if kind != "preprocessor":
            module = module.half().float()
        program = read_program(bundle / runtime.contract.graphs[name].path, fp16=False)
        with torch.no_grad():
            taken += take_stored_weights(module, program, network.config.hidden_size)
            expected = module(*inputs.values())
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = program({key: value.numpy() for key, value in inputs.items()})
        for value, reference in zip(runtime.contract.graphs[name].outputs, expected, strict=True):
            difference = np.abs(found[value.name].astype(np.float64) - reference.double().numpy()).max()
            assert difference <= FP32 * max(1.0, float(reference.abs().max())), (name, value.name)
        compared.add(name)
    assert compared == set(runtime.contract.graphs)
    assert bool(taken) == (weights != "fp16")


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


@pytest.mark.parametrize("weights", [pytest.param("fp16", marks=pytest.mark.long), "int8"])
def test_one_graph_and_shards_are_equal_bit_for_bit(tmp_path: Path, weights: Weights) -> None:
    """The published claim of seed 002: sharding changes nothing."""
    network = small_coreml_network(prompt=False)
    runtimes = []
    for layout in ("english", "sharded"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = tmp_path / layout
            export_coreml(
                network, Tokenizer(PIECES), folder, source="random", layout=layout, weights=weights,
                att_context=CONTEXT, chunk=112,
            )  # fmt: skip
        runtime = MilRuntime(folder, fp16=False)
        runtime.resize(1)
        runtime.reset(0)
        runtimes.append(runtime)
    window = np.random.default_rng(2).normal(-10, 3, (121, network.config.num_mel_bins)).astype(np.float32)
    states: list[dict[str, Any]] = [{}, {}]
    for _ in range(3):
        one, many = (
            runtime.encoder_step(state, window, 121, 0)
            for runtime, state in zip(runtimes, states, strict=True)
        )
        np.testing.assert_array_equal(one["encoder"]["outputs"], many["encoder_shard_3"]["encoded"])


def broken(runtime: MilRuntime, graph: str, change: Callable[[Inputs], Inputs]) -> MilRuntime:
    """The runtime with a graph whose inputs are changed on the way."""
    program = runtime.programs[graph]
    runtime.programs[graph] = lambda inputs: program(change(dict(inputs)))  # type: ignore[assignment]
    return runtime


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_wrong_is_found(layout: Layout) -> None:
    """Negative controls: a cache length that stays, another language, caches along the wrong axis."""
    first = "encoder_shard_0" if layout in ("sharded", "watch") else "encoder"
    last = {"single": "prompt_projection", "english": "encoder"}.get(layout, "encoder_shard_3")
    length = next(
        n
        for n, (s, d) in MilRuntime(small_coreml_bundle(layout)).programs[first].inputs.items()
        if n.endswith("len")
    )
    channel = length.removesuffix("_len") if layout in ("single", "english") else "cache_channel"

    assert report_of(MilRuntime(small_coreml_bundle(layout)), small_checkpoint(layout), "fp16").passed

    def stuck(inputs: Inputs) -> Inputs:
        return inputs | {length: np.zeros_like(inputs[length])}

    def wrong_axis(inputs: Inputs) -> Inputs:
        return inputs | {channel: np.swapaxes(inputs[channel], -1, -2).reshape(inputs[channel].shape)}

    def other_language(inputs: Inputs) -> Inputs:
        return inputs | {"prompt_id": inputs["prompt_id"] + 1}

    controls = [(first, stuck), (first, wrong_axis)]
    if layout != "english":
        controls.append((last, other_language))
    for graph, change in controls:
        runtime = MilRuntime(small_coreml_bundle(layout))
        if graph not in runtime.programs:
            runtime.run(
                graph, {name: np.zeros(shape) for name, (shape, _) in _signature(runtime, graph).items()}
            )
        report = report_of(broken(runtime, graph, change), small_checkpoint(layout), "fp16")
        assert not report.passed, (graph, change.__name__)
        assert report.first_divergence.stage not in ("config", "features", "tokenizer")


def _signature(runtime: MilRuntime, graph: str) -> dict[str, Any]:
    return {value.name: (value.shape, value.dtype) for value in runtime.contract.graphs[graph].inputs}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    """Bundles of the embedded model, each made once."""
    from nemostream.checkpoints import load_checkpoint

    checkpoint = load_checkpoint(embedded_checkpoint())
    made: dict[tuple[str, str], Path] = {}

    def bundle(layout: Layout, weights: Weights) -> tuple[Path, Checkpoint]:
        if (layout, weights) not in made:
            folder = tmp_path_factory.mktemp(f"{layout}-{weights}")
            export_coreml(
                load_network(checkpoint), checkpoint.tokenizer, folder, source="tiny", layout=layout,
                weights=weights, att_context=(56, 13), chunk=112,
            )  # fmt: skip
            made[layout, weights] = folder
        return made[layout, weights], checkpoint

    return bundle


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weights", ["fp16", "int8", "palette8"])
def test_recordings_give_the_tokens_of_the_reference(
    embedded: Embedded, layout: Layout, weights: Weights
) -> None:
    """The whole pipeline from the bundle, fp16 rounding included; "single" but for its inexact last call."""
    folder, checkpoint = embedded(layout, weights)
    port = open_port(str(folder), backend="mil")
    clips = {path.name: load_audio(path) for path in EXAMPLES}
    report = verify(port, checkpoint, clips)
    stages = {stage.stage: stage for stage in report.stages}
    assert report.passed, report.first_divergence
    assert stages["tokens"].detail is None
    assert stages["text"].passed


def test_packets_do_not_change_the_text_and_the_end_is_heard(embedded: Embedded) -> None:
    """The tokens of the reference in uniform framing, through sessions of both."""
    folder, checkpoint = embedded("sharded", "fp16")
    model = nemostream.load(folder, backend="mil")
    samples = load_audio(EXAMPLES[0])
    whole = model.transcribe(samples)
    with model.stream() as session:
        for start in range(0, len(samples), 777):
            session.feed(samples[start : start + 777])
        session.finish()
        assert session.transcript().tokens == whole.tokens
    reference = Model(Reference(checkpoint, "uniform"))  # type: ignore[arg-type]
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
