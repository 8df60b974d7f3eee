"""The exported graphs against the network that they were traced from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from nemostream.checkpoints.bundle import read_manifest
from nemostream.errors import BackendError, CheckpointError
from nemostream.export import graph as graph_file
from nemostream.export.graph import GraphBuilder
from nemostream.export.linear import LinearLayers, Weights, quantise_int4, quantise_int8
from nemostream.export.onnx import export_onnx, half_precision_weights
from nemostream.export.onnx_layer import LEAST_SILU
from nemostream.model.conformer import LayerPast
from nemostream.model.network import Network
from nemostream.model.subsampling import SubsamplingState
from nemostream.runtimes import onnx_graphs as graphs
from nemostream.text.tokenizer import Tokenizer
from tests.bundles import golden_bundle, random_bundle, random_network
from tests.models import PIECES, small_config, small_network

TOLERANCE = 1e-4
FP16_TOLERANCE = 1e-2  # the past is fp16 as well, and is made of random numbers of order 1
CONTEXTS = np.array([[56, 3], [56, 0], [56, 1], [28, 3], [4, 1]])


def session(folder: Path, graph: str) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(folder / graph), options)


def random_call(network: Network, batch: int, frames: int, past: int, seed: int) -> dict[str, Any]:
    """What the reference is given in the middle of streams, some of them at their start or end."""
    config, rng = network.config, np.random.default_rng(seed)
    state = network.encoder.initial_state(batch, past)
    normal = lambda like: rng.standard_normal(tuple(like.shape), dtype=np.float32)  # noqa: E731
    call = {
        "mel": rng.standard_normal((batch, 8 * frames, config.num_mel_bins), dtype=np.float32),
        "mel_lengths": rng.integers(8 * frames - 11 if frames > 1 else 1, 8 * frames + 1, batch),
        "att_context": np.minimum(CONTEXTS[rng.integers(0, len(CONTEXTS), batch)], past),
        "frames": rng.choice([0, 4, 12, 400], batch),
    }
    call |= dict(zip(graphs.stem_inputs(), map(normal, state.subsampling), strict=True))
    for kind in graphs.KINDS:
        tensors = map(normal, getattr(state, kind))
        call |= dict(zip(graphs.layer_inputs(kind, config.num_layers), tensors, strict=True))
    if config.has_prompt:
        call["prompt_ids"] = rng.integers(0, config.num_prompts, batch)
    return call


def graph_call(network: Network, encoder: Any, call: dict[str, Any]) -> dict[str, Any]:
    """The same for the graph: pasts become rows of a memory, in an order of no meaning."""
    config, rng = network.config, np.random.default_rng(0)
    types = {spec.name: spec.type for spec in encoder.get_inputs()}
    batch, taps = len(call["frames"]), config.conv_kernel_size - 1
    past = call[graphs.layer_inputs("keys", 1)[0]].shape[1]
    orders = {"past_rows": (config.num_heads, past), "gated_rows": (1, taps)}
    rows = {name: rng.permutation(batch * a * b).reshape(batch, a, b) for name, (a, b) in orders.items()}
    given = dict(call) | rows
    for kind in graphs.KINDS:
        order = rows["gated_rows" if kind == "gated" else "past_rows"]
        for name in graphs.layer_inputs(kind, config.num_layers):
            memory = np.empty((order.size, given[name].shape[2] // order.shape[1]), np.float32)
            memory[order] = split_heads(given[name], order.shape[1])
            given[name] = memory.astype(np.float16 if "float16" in types[name] else np.float32)
    return given


def split_heads(frames: Any, parts: int) -> Any:
    """[B, N, D] -> [B, parts, N, D / parts]."""
    return frames.reshape(*frames.shape[:2], parts, -1).swapaxes(1, 2)


def reference_call(network: Network, call: dict[str, Any]) -> dict[str, Any]:
    layers = network.config.num_layers
    given = {name: torch.from_numpy(array) for name, array in call.items()}
    pasts = zip(
        *([given[name] for name in graphs.layer_inputs(kind, layers)] for kind in graphs.KINDS), strict=True
    )
    encoded, lengths, stem, new = network.encoder.step(
        given["mel"],
        given["mel_lengths"],
        given["frames"],
        [LayerPast(*past) for past in pasts],
        SubsamplingState(*(given[name] for name in graphs.stem_inputs())),
        given["att_context"],
        None,
    )
    result = {
        "encoded": network.project(encoded, given.get("prompt_ids", torch.empty(0))),
        "lengths": lengths,
    }
    result |= dict(zip(graphs.stem_outputs(), stem, strict=True))
    for kind in graphs.KINDS:
        kept = [getattr(frames, kind) for frames in new]
        parts = 1 if kind == "gated" else network.config.num_heads
        split = [split_heads(frames, parts) for frames in kept]
        result |= dict(zip(graphs.layer_outputs(kind, layers), split, strict=True))
    return {name: tensor.detach().numpy() for name, tensor in result.items()}


def worst(network: Network, encoder: Any, batch: int, frames: int, past: int) -> float:
    """Largest difference over all outputs of one call."""
    call = random_call(network, batch, frames, past, seed=batch * 100 + frames)
    expected = reference_call(network, call)
    names = list(expected)
    found = encoder.run(names, graph_call(network, encoder, call))
    assert [array.shape for array in found] == [expected[name].shape for name in names]
    assert np.array_equal(found[names.index("lengths")], expected["lengths"])
    return max(float(np.abs(array - expected[name]).max()) for name, array in zip(names, found, strict=True))


@pytest.fixture(scope="module", params=[True, False], ids=["prompt", "english"])
def prompt(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_encoder_equals_torch_for_any_batch_number_of_chunks_and_room(prompt: bool) -> None:
    network, encoder = random_network(prompt), session(random_bundle(prompt), graphs.ENCODER)
    for batch in (1, 5):
        for frames in (1, 2, 4, 8, 16, 112):
            assert worst(network, encoder, batch, frames, past=56) < TOLERANCE
        assert worst(network, encoder, batch, frames=4, past=8) < TOLERANCE


def test_encoder_equals_torch_with_the_golden_weights(golden: Path) -> None:
    network, folder = golden_bundle(golden / "multi_hf")
    encoder = session(folder, graphs.ENCODER)
    for batch, frames in ((1, 4), (5, 4), (5, 16)):
        assert worst(network, encoder, batch, frames, past=56) < TOLERANCE


def test_predictor_equals_torch(prompt: bool) -> None:
    network, predictor = random_network(prompt), session(random_bundle(prompt), graphs.PREDICTOR)
    rng = np.random.default_rng(0)
    for batch in (1, 5):
        h, c = (
            rng.standard_normal(tuple(z.shape), dtype=np.float32)
            for z in network.initial_predictor_state(batch)
        )
        tokens = rng.integers(0, network.config.blank_id + 1, batch)
        found = predictor.run(["predicted", "new_h", "new_c"], {"tokens": tokens, "h": h, "c": c})
        state = (torch.from_numpy(h), torch.from_numpy(c))
        predicted, state = network.decoder(torch.from_numpy(tokens)[:, None], state)
        for array, tensor in zip(found, (predicted[:, 0], *state), strict=True):
            assert np.abs(array - tensor.numpy()).max() < 1e-5


def test_joint_equals_torch(prompt: bool) -> None:
    network, joint = random_network(prompt), session(random_bundle(prompt), graphs.JOINT)
    rng, width = np.random.default_rng(0), network.config.joint_hidden_size
    for batch, window in ((1, 1), (1, 4), (5, 7)):
        encoded = rng.standard_normal((batch, window, width), dtype=np.float32)
        predicted = rng.standard_normal((batch, width), dtype=np.float32)
        tokens, logits = joint.run(["tokens", "logits"], {"encoded": encoded, "predicted": predicted})
        expected = network.joint(torch.from_numpy(encoded), torch.from_numpy(predicted)[:, None]).numpy()
        assert np.abs(logits - expected).max() < 1e-5
        assert np.array_equal(tokens, expected.argmax(axis=2))


def test_half_precision_bundle_equals_torch_with_rounded_weights(prompt: bool) -> None:
    network = half_precision_weights(random_network(prompt))
    encoder = session(random_bundle(prompt, "fp16"), graphs.ENCODER)
    for batch, frames in ((1, 4), (5, 8)):
        assert worst(network, encoder, batch, frames, past=56) < FP16_TOLERANCE


@pytest.mark.parametrize(("weights", "most"), [("int8", 0.5), ("int4", 3.0)])
def test_quantised_bundle_is_near_torch(weights: Weights, most: float) -> None:
    """The largest of thousands of numbers of order 1; how good it is in words is in the manifest."""
    network, encoder = random_network(True), session(random_bundle(True, weights), graphs.ENCODER)
    for batch, frames in ((1, 4), (5, 8)):
        assert worst(network, encoder, batch, frames, past=56) < most


def test_quantised_rows_do_not_depend_on_each_other() -> None:
    """ONNX Runtime's DynamicQuantizeLinear would give one scale to a batch."""
    joint = session(random_bundle(True, "int8"), graphs.JOINT)
    rng, width = np.random.default_rng(0), random_network(True).config.joint_hidden_size
    encoded = rng.standard_normal((3, 4, width), dtype=np.float32)
    predicted = rng.standard_normal((3, width), dtype=np.float32)
    encoded[1] *= 1000
    (together,) = joint.run(["logits"], {"encoded": encoded, "predicted": predicted})
    (alone,) = joint.run(["logits"], {"encoded": encoded[:1], "predicted": predicted[:1]})
    assert np.array_equal(together[:1], alone)


@pytest.mark.parametrize(("least", "better"), [(0.0, 0.6), (LEAST_SILU, 0.8)])
def test_a_known_bound_makes_quantised_inputs_finer(tmp_path: Path, least: float, better: float) -> None:
    """Levels that negative numbers would have are given to positive ones; rows of zeros stay zeros."""
    rng = np.random.default_rng(0)
    weight = torch.from_numpy(rng.standard_normal((32, 512), dtype=np.float32))
    x = np.maximum(rng.standard_normal((20, 512), dtype=np.float32) * 3, np.float32(least))
    x[3] = 0
    errors = []
    for bound in (None, least):
        graph = GraphBuilder(tmp_path / "linear.onnx")
        given = graph.input("x", ["rows", 512])
        y = LinearLayers(graph, "int8").add(given, "weight", weight, least=bound)
        graph.output("y", y, ["rows", 32])
        graph.save()
        (found,) = session(tmp_path, "linear.onnx").run(None, {"x": x})
        assert not found[3].any()
        rounded, scales = quantise_int8(weight.numpy())  # its own error is not what this is about
        errors.append(np.square(found - x @ (rounded * scales[:, None]).T).mean() ** 0.5)
    assert errors[1] < better * errors[0]


def test_quantised_matrices_are_within_half_a_step() -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 64), dtype=np.float32)
    matrix[2] = 0
    values, scales = quantise_int8(matrix)
    assert np.abs(values * scales[:, None] - matrix).max() <= scales.max() / 2 + 1e-6
    pairs, scales = quantise_int4(matrix)
    levels = np.stack([pairs & 15, pairs >> 4], axis=3).reshape(5, 2, 32).astype(np.int64)
    error = np.abs((levels - 8) * scales[:, :, None] - matrix.reshape(5, 2, 32))
    assert (
        error <= np.abs(scales[:, :, None]) + 1e-6
    ).all()  # level 8 does not exist, so 7.5 ... 8 becomes 7


def initialisers(folder: Path, graph: str) -> tuple[Any, dict[str, Any]]:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(folder / graph)
    return model.graph, {tensor.name: tensor for tensor in model.graph.initializer}


@pytest.mark.parametrize("weights", ["fp16", "int8"])
def test_small_weights_are_stored_small(weights: Weights) -> None:
    """fp32 stay the position tables, which are sums, and in int8 what is excluded: stem and projection."""
    float32 = 1  # onnx.TensorProto
    for graph_name in graphs.GRAPHS:
        graph, stored = initialisers(random_bundle(True, weights), graph_name)
        used = {name: node.op_type for node in graph.node for name in node.input if name in stored}
        for name, tensor in stored.items():
            if sum(side > 1 for side in tensor.dims) > 1 and tensor.data_type == float32:
                assert used[name] == "Slice", name


def test_large_weights_go_to_a_data_file_that_a_later_export_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_network(False)
    monkeypatch.setattr(graph_file, "SINGLE_FILE_BYTES", 200_000)
    manifest = export_onnx(network, Tokenizer(PIECES), tmp_path, source="random")
    assert "encoder.onnx.data" in manifest.files
    assert "joint.onnx.data" not in manifest.files
    assert worst(network, session(tmp_path, graphs.ENCODER), batch=2, frames=4, past=56) < TOLERANCE
    monkeypatch.undo()
    export_onnx(network, Tokenizer(PIECES), tmp_path, source="random")
    assert {path.name for path in tmp_path.iterdir()} == {*graphs.GRAPHS, "tokens.txt", "manifest.json"}
    assert read_manifest(tmp_path).weights == "fp32"


def test_export_leaves_the_network_as_it_was(tmp_path: Path) -> None:
    network = small_network(small_config())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    half_precision_weights(network)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    export_onnx(network.train(), Tokenizer(PIECES), tmp_path, source="random")
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    network, tokenizer = random_network(True), Tokenizer(PIECES)
    with pytest.raises(BackendError, match="max_frames is 13"):
        export_onnx(network, tokenizer, tmp_path, source="random", max_frames=13)
    with pytest.raises(BackendError, match="use one of fp32, fp16, int8, int4"):
        export_onnx(network, tokenizer, tmp_path, source="random", weights="int3")  # type: ignore[arg-type]
    large = small_network(small_config())
    large.encoder_projector.weight[0, 0] = 1e5
    with pytest.raises(CheckpointError, match=r"encoder_projector has a value of 100000"):
        export_onnx(large, tokenizer, tmp_path, source="random", weights="fp16")
