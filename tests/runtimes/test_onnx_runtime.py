"""`OnnxRuntime` against the reference network, stream by stream."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nemostream
from nemostream.checkpoints.bundle import MANIFEST
from nemostream.errors import BackendError, CheckpointError
from nemostream.export.linear import Weights
from nemostream.export.manifest import write_manifest
from nemostream.model.network import Network
from nemostream.runtimes.onnx import OnnxRuntime, default_threads
from nemostream.runtimes.protocol import Float32, Int64, Runtime
from tests.bundles import golden_bundle, random_bundle, random_network

TOLERANCE = 1e-4
# equal bits on the machine where this was written; no promise, since a matrix product may round otherwise
# when it has more rows
NEIGHBOUR_TOLERANCE = 1e-5


class Reference:
    """Any number of streams on the reference network, one `EncoderState` for all."""

    def __init__(self, network: Network, streams: int, left: int = 56) -> None:
        self.network = network
        self.state = network.encoder.initial_state(streams, left)

    def encode(self, mel: Float32, lengths: Int64, prompts: Int64, contexts: Int64) -> tuple[Float32, Int64]:
        mel_, lengths_, prompts_, contexts_ = map(torch.from_numpy, (mel, lengths, prompts, contexts))
        encoded, frames, self.state = self.network.encoder(mel_, lengths_, self.state, contexts_)
        return self.network.project(encoded, prompts_).numpy(), frames.numpy()


def open_runtime(folder: Path, slots: int = 1, left_context: int | None = None) -> OnnxRuntime:
    runtime = OnnxRuntime(folder, threads=1, left_context=left_context)
    runtime.resize(slots)
    for slot in range(slots):
        runtime.reset(slot)
    return runtime


def random_mel(seed: int, *shape: int) -> Float32:
    return np.random.default_rng(seed).standard_normal((*shape, 128), dtype=np.float32)


def check_stream(network: Network, folder: Path, batch: int, chunks: int, calls: int) -> None:
    """Step streams of mixed contexts and changing languages, in slots out of order, to unequal ends."""
    config, reference = network.config, Reference(network, batch)
    runtime = open_runtime(folder, batch + 2)
    slots = [(3 * row + 1) % (batch + 2) for row in range(batch)]
    contexts = np.array([[56, 3], [56, 1], [56, 0], [28, 3], [56, 3]])[:batch]
    rng = np.random.default_rng(batch)
    for call in range(calls):
        rows = 32 * chunks
        lengths = np.full(batch, rows)
        if call == calls - 1:
            lengths = rng.integers(1, rows + 1, batch)
        prompts = rng.integers(0, max(config.num_prompts, 1), batch)
        mel = random_mel(call, batch, rows)
        found, frames = runtime.encode(slots, mel, lengths, prompts, contexts)
        expected, expected_frames = reference.encode(mel, lengths, prompts, contexts)
        assert found.shape == expected.shape
        assert np.array_equal(frames, expected_frames)
        assert np.array_equal(frames, (lengths + 7) // 8)
        for row, valid in enumerate(frames):
            assert np.abs(found[row, :valid] - expected[row, :valid]).max() < TOLERANCE


@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "english"])
@pytest.mark.parametrize("batch", [1, 5])
def test_streams_equal_torch(prompt: bool, batch: int) -> None:
    for chunks in (1, 2, 4, 8):
        check_stream(random_network(prompt), random_bundle(prompt), batch, chunks, calls=12)


def test_streams_equal_torch_with_the_golden_weights(golden: Path) -> None:
    network, folder = golden_bundle(golden / "multi_hf")
    for batch in (1, 5):
        check_stream(network, folder, batch, chunks=1, calls=20)


def test_one_long_call_and_many_short_ones_agree() -> None:
    """Calls that fill the arena in place, that do not fit in place, and that are longer than the window."""
    mel = random_mel(1, 1, 8 * 112)
    outputs = []
    for frames in (4, 28, 112):
        runtime = open_runtime(random_bundle(True))
        parts = []
        for start in range(0, 112, frames):
            part = mel[:, 8 * start : 8 * (start + frames)]
            parts.append(encode_one(runtime, 0, part, right=3))
        outputs.append(np.concatenate(parts))
    assert np.abs(outputs[0] - outputs[1]).max() < TOLERANCE
    assert np.abs(outputs[0] - outputs[2]).max() < TOLERANCE


def encode_one(runtime: Runtime, slot: int, mel: Float32, right: int = 3, prompt: int = 9) -> Float32:
    left = runtime.left_context - runtime.left_context % (right + 1)
    encoded, _ = runtime.encode(
        [slot], mel, np.array([mel.shape[1]]), np.array([prompt]), np.array([[left, right]])
    )
    row: Float32 = encoded[0]
    return row


def test_a_slot_that_is_used_again_gives_the_same_bits() -> None:
    runtime = open_runtime(random_bundle(True), slots=2)

    def run() -> list[Float32]:
        runtime.reset(1)
        steps = [encode_one(runtime, 1, random_mel(call, 1, 32)) for call in range(20)]
        return [*steps, *(runtime.predict([1], np.array([token])) for token in (65 - 1, 3, 4))]

    first = run()
    encode_one(runtime, 1, 100 * random_mel(99, 1, 32))
    for a, b in zip(first, run(), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_a_stream_does_not_depend_on_its_neighbours(weights: Weights) -> None:
    folder = random_bundle(True, weights)
    alone, shared = open_runtime(folder), open_runtime(folder, slots=5)
    rng = np.random.default_rng(0)
    for call in range(20):
        mine = random_mel(call, 1, 32)
        expected = encode_one(alone, 0, mine)
        slots = [2, *rng.choice([0, 1, 3, 4], rng.integers(0, 5), replace=False)]
        mel = np.concatenate([mine, 50 * random_mel(call + 100, len(slots) - 1, 32)])
        rest = len(slots) - 1
        encoded, _ = shared.encode(
            [int(slot) for slot in slots],
            mel,
            np.array([32, *[17] * rest]),
            np.array([9, *[101] * rest]),
            np.array([[56, 3], *[[56, 0]] * rest]),
        )
        assert np.abs(encoded[0] - expected).max() < NEIGHBOUR_TOLERANCE


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_workers_change_nothing(weights: Weights) -> None:
    """Streams of unequal clocks and lengths, divided over three threads that run at the same time."""
    folder, batch = random_bundle(True, weights), 7
    runtimes = [OnnxRuntime(folder, threads=1, workers=workers, verify=False) for workers in (1, 3)]
    for runtime in runtimes:
        runtime.resize(batch)
        for slot in range(batch):
            runtime.reset(slot)
    rng = np.random.default_rng(0)
    for call in range(16):
        rows = rng.integers(1, batch + 1)
        slots = [int(slot) for slot in rng.choice(batch, rows, replace=False)]
        arguments = (random_mel(call, rows, 96), rng.integers(1, 97, rows), rng.integers(0, 128, rows))
        contexts = np.array([[56, 3], [56, 1], [28, 3]])[rng.integers(0, 3, rows)]
        (one, lengths), (several, same) = (
            runtime.encode(slots, *arguments, contexts) for runtime in runtimes
        )
        assert np.array_equal(lengths, same)
        assert np.abs(one - several).max() < NEIGHBOUR_TOLERANCE


def test_one_workers_failure_is_the_calls() -> None:
    runtime = OnnxRuntime(random_bundle(True), threads=1, workers=2)
    runtime.resize(8)
    two = np.array([32] * 8), np.array([9] * 8), np.array([[56, 3]] * 8)
    with pytest.raises(BackendError, match="could not run the encoder"):
        runtime.encode(list(range(8)), np.zeros((8, 32, 64), np.float32), *two)
    encoded, _ = runtime.encode(list(range(8)), random_mel(0, 8, 32), *two)
    assert encoded.shape[:2] == (8, 4)


def test_predictor_and_joint_equal_torch() -> None:
    network, runtime = random_network(True), open_runtime(random_bundle(True), slots=4)
    state = network.initial_predictor_state(3)
    rng, slots = np.random.default_rng(0), [3, 0, 2]
    for _ in range(5):
        tokens = rng.integers(0, 65, 3)
        predicted = runtime.predict(slots, tokens)
        expected, state = network.decoder(torch.from_numpy(tokens)[:, None], state)
        assert np.abs(predicted - expected[:, 0].numpy()).max() < 1e-5
    encoded = rng.standard_normal((3, 4, network.config.joint_hidden_size), dtype=np.float32)
    logits = network.joint(torch.from_numpy(encoded), torch.from_numpy(predicted)[:, None]).numpy()
    assert np.abs(runtime.joint_logits(encoded, predicted) - logits).max() < 1e-4
    assert np.array_equal(runtime.joint(encoded, predicted), logits.argmax(axis=2))


def test_growing_keeps_what_the_slots_hold() -> None:
    growing, ready = open_runtime(random_bundle(True)), open_runtime(random_bundle(True), slots=3)
    for call in range(6):
        if call == 3:
            growing.resize(3)
        mel = random_mel(call, 1, 32)
        assert np.array_equal(encode_one(growing, 0, mel), encode_one(ready, 0, mel))
        token = np.array([call])
        assert np.array_equal(growing.predict([0], token), ready.predict([0], token))
    assert growing.slots == 3


def test_a_smaller_room_for_context() -> None:
    network, runtime = random_network(True), open_runtime(random_bundle(True), left_context=8)
    reference = Reference(network, 1, left=8)
    for call in range(8):
        mel = random_mel(call, 1, 32)
        arguments = (np.array([32]), np.array([9]), np.array([[8, 3]]))
        expected, _ = reference.encode(mel, *arguments)
        assert np.abs(encode_one(runtime, 0, mel) - expected[0]).max() < TOLERANCE


def test_no_left_context_at_all() -> None:
    runtime = open_runtime(random_bundle(True), left_context=0)
    network = random_network(True)
    mel = random_mel(0, 1, 8 * 112)
    expected = Reference(network, 1, left=0).encode(mel, np.array([896]), np.array([9]), np.array([[0, 3]]))[
        0
    ]
    for start in range(0, 112, 28):  # only the convolution looks back
        found = encode_one(runtime, 0, mel[:, 8 * start : 8 * start + 224])
        assert np.abs(found - expected[0, start : start + 28]).max() < TOLERANCE


def test_calls_that_cannot_be_run() -> None:
    runtime = open_runtime(random_bundle(True))
    assert runtime.max_frames == 112
    with pytest.raises(BackendError, match="113 encoder frames was made; this bundle takes 112"):
        encode_one(runtime, 0, random_mel(0, 1, 8 * 113), right=0)
    with pytest.raises(BackendError, match="31 mel rows was made; a multiple of 8"):
        encode_one(runtime, 0, random_mel(0, 1, 31))
    with pytest.raises(BackendError, match="left context of 57 frames was asked for; there is room for 56"):
        runtime.encode([0], random_mel(0, 1, 8), np.array([8]), np.array([9]), np.array([[57, 0]]))
    with pytest.raises(BackendError, match="could not run the encoder"):
        runtime.encode(
            [0], np.zeros((1, 8, 64), np.float32), np.array([8]), np.array([9]), np.array([[56, 0]])
        )


def copy_of_bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(random_bundle(True), tmp_path / "bundle"))


def test_a_damaged_bundle_is_refused_before_it_runs(tmp_path: Path) -> None:
    folder = copy_of_bundle(tmp_path)
    (folder / "joint.onnx").write_bytes(b"?")
    with pytest.raises(CheckpointError, match=r"joint\.onnx has 1 bytes"):
        OnnxRuntime(folder)


def test_a_graph_that_onnxruntime_cannot_load_is_one_sentence(tmp_path: Path) -> None:
    folder = copy_of_bundle(tmp_path)
    (folder / "joint.onnx").write_bytes(b"not a graph")
    with pytest.raises(BackendError, match=r"could not load .*joint\.onnx") as caught:
        OnnxRuntime(folder, verify=False)
    assert "\n" not in str(caught.value)


def test_a_bundle_of_another_runtime_is_refused(tmp_path: Path) -> None:
    folder = copy_of_bundle(tmp_path)
    values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for key, value in (("runtime", "coreml"), ("framing", "uniform")):
        (folder / MANIFEST).write_text(json.dumps({**values, key: value}), encoding="utf-8")
        with pytest.raises(BackendError, match=f"{value}.*ONNX Runtime runs onnx bundles in native framing"):
            OnnxRuntime(folder)


def test_settings_that_make_no_sense() -> None:
    folder = random_bundle(True)
    with pytest.raises(BackendError, match="0 threads"):
        OnnxRuntime(folder, threads=0)
    with pytest.raises(BackendError, match="0 workers"):
        OnnxRuntime(folder, workers=0)
    with pytest.raises(BackendError, match="affinity is for the threads after the first"):
        OnnxRuntime(folder, threads=1, affinity="1")
    with pytest.raises(BackendError, match="processors from 1 to"):
        OnnxRuntime(folder, threads=2, affinity="first")
    with pytest.raises(BackendError, match="left context of 0 to 56, not 57"):
        OnnxRuntime(folder, left_context=57)
    with pytest.raises(BackendError, match=r"no WarpDriveExecutionProvider; it has: .*CPUExecutionProvider"):
        OnnxRuntime(folder, providers=["WarpDriveExecutionProvider"])
    assert 1 <= default_threads() <= 4


def test_settings_reach_the_runtime_and_nothing_else() -> None:
    runtime = nemostream.load(random_bundle(True), threads=1, workers=2, spin=True).engine.runtime
    assert isinstance(runtime, OnnxRuntime)
    assert runtime.workers == 2
    for settings in ({"workers": 2}, {"spin": True}, {"affinity": "1"}):
        with pytest.raises(BackendError, match="is a setting of ONNX Runtime, which does not run"):
            nemostream.load(backend="torch", **settings)  # type: ignore[arg-type]


def test_it_is_a_runtime() -> None:
    runtime: Runtime = OnnxRuntime(random_bundle(True))  # mypy checks the protocol
    assert (runtime.name, runtime.framing, runtime.left_context, runtime.slots) == ("onnx", "native", 56, 0)
    assert runtime.tokenizer.pieces[1] == "<en-US>"


def test_running_a_bundle_imports_neither_torch_nor_onnx() -> None:
    code = """
import pathlib, sys
import numpy as np
from nemostream.runtimes.onnx import OnnxRuntime
runtime = OnnxRuntime(pathlib.Path(sys.argv[1]), threads=1)
runtime.resize(1)
one = np.array([0])
encoded, _ = runtime.encode([0], np.zeros((1, 32, 128), np.float32), one + 32, one, np.array([[56, 3]]))
runtime.joint(encoded, runtime.predict([0], one))
assert not {"torch", "onnx", "onnxscript", "onnx_ir"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, str(random_bundle(True))], check=True)


def test_write_manifest_hashes_what_is_there(tmp_path: Path) -> None:
    folder = copy_of_bundle(tmp_path)
    runtime = OnnxRuntime(folder)
    with pytest.raises(CheckpointError, match=r"lost\.onnx cannot be read"):
        write_manifest(
            folder,
            config=runtime.config,
            runtime="onnx",
            framing="native",
            max_frames=None,
            weights="fp32",
            source="random",
            source_revision=None,
            files=["lost.onnx"],
        )
