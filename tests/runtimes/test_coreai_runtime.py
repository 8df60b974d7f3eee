"""Core AI graphs compute what the reference network computes, chunk after chunk, to a stream's exact end."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from nemostream.audio import load_audio
from nemostream.engine.model import Model
from nemostream.errors import BackendError, CheckpointError, ContextError
from nemostream.framing import UNIFORM_HISTORY, UniformFramer
from nemostream.loading import load
from nemostream.runtimes import coreai_graphs as graphs
from nemostream.runtimes.protocol import FixedRuntime, Float32, ForkingRuntime, Runtime
from tests.conftest import REPOSITORY

pytest.importorskip("coreai_torch", reason="the extra coreai is not installed")

from nemostream.features import log_mel
from nemostream.runtimes.coreai import CoreAiRuntime
from nemostream.runtimes.coreai_graphs import Layout
from tests.coreai_bundles import (
    EMBEDDED,
    GOLDEN,
    LAYOUTS,
    coreai_bundle,
    coreai_runtime,
    reference_for,
)

TOLERANCE = 1e-4  # of numbers near 1; what is left is the order of additions, about 1e-5
CHUNKS = 40  # the caches are full after 14 at most
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.flac"))
# of the largest encoder output, after nine layers with weights in steps of 1/127 of the largest of a row
INT8_BOUND = 0.04
# the same for a random model of four layers in which every operation rounds to 11 bits; int8 weights alone
# are 0.04 off on it, in PyTorch too
FP16_BOUNDS = {"fp16": 0.03, "int8": 0.08}

both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


def chained(runtime: Runtime, calls: int, last_rows: int, slot: int = 0, seed: int = 0) -> Float32:
    """Valid encoder frames [T, J] of one stream of ``calls`` calls, the last with so many real rows."""
    assert isinstance(runtime, FixedRuntime)
    rng = np.random.default_rng(seed)
    lead = UNIFORM_HISTORY if runtime.framing == "uniform" else 0
    rows = 8 * runtime.call_frames
    if runtime.slots <= slot:
        runtime.resize(slot + 1)
    runtime.reset(slot)
    frames = []
    for call in range(calls):
        mel = 3 * rng.standard_normal((1, lead + rows, runtime.config.num_mel_bins), dtype=np.float32) - 6
        if call == 0:
            mel[:, : lead or 7] = 0.0
        real = last_rows if call == calls - 1 else rows
        mel[:, lead + real :] = 0.0
        prompt = np.array([9 if call % 2 else 101])  # a language may change at any chunk
        context = np.array([runtime.att_context])
        encoded, valid = runtime.encode([slot], mel, np.array([lead + real]), prompt, context)
        frames.append(encoded[0, : valid[0]])
    return np.concatenate(frames)


def error_of(runtime: CoreAiRuntime, path: Path, calls: int, last_rows: int) -> tuple[float, float]:
    """Largest difference from the reference, and the largest number."""
    ours = chained(runtime, calls, last_rows)
    theirs = chained(reference_for(runtime, path), calls, last_rows)
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())


@both_layouts
def test_forty_chained_chunks(layout: Layout) -> None:
    difference, size = error_of(coreai_runtime(layout), GOLDEN / "multi.nemo", CHUNKS, last_rows=11)
    assert size > 0.5
    assert difference < TOLERANCE


@both_layouts
@pytest.mark.parametrize(("calls", "last_rows"), [(1, 8), (1, 25), (2, 1), (2, 7), (3, 8), (3, 9), (2, 32)])
def test_a_stream_may_end_anywhere(layout: Layout, calls: int, last_rows: int) -> None:
    difference, _ = error_of(coreai_runtime(layout), GOLDEN / "multi.nemo", calls, last_rows)
    assert difference < TOLERANCE


@both_layouts
def test_streams_do_not_see_each_other(layout: Layout) -> None:
    runtime = coreai_runtime(layout)
    lead = UNIFORM_HISTORY if runtime.framing == "uniform" else 0
    rows = lead + 8 * runtime.call_frames
    rng = np.random.default_rng(1)
    mel = rng.standard_normal((3, 2, rows, runtime.config.num_mel_bins), dtype=np.float32)
    full, prompts, contexts = np.full(2, rows), np.array([0, 9]), np.array([runtime.att_context] * 2)

    def run(slots: list[int]) -> Float32:
        for slot in slots:
            runtime.reset(slot)
        outputs = [
            runtime.encode(slots, call[slots], full[slots], prompts[slots], contexts[slots])[0]
            for call in mel
        ]
        return np.concatenate(outputs, axis=1)

    together = run([0, 1])
    for slot in (0, 1):
        assert np.array_equal(run([slot])[0], together[slot])


def test_tokens_of_nemo() -> None:
    expected = json.loads((GOLDEN / "a0.json").read_text())["R3"]
    transcript = Model(coreai_runtime("six")).transcribe(GOLDEN / "a0.wav", "de-DE")
    assert [token.id for token in transcript.tokens] == expected["tokens"]
    assert [token.frame for token in transcript.tokens] == expected["frames"]


@pytest.mark.long
@pytest.mark.parametrize("right", [0, 1, 6, 13])
def test_tokens_of_nemo_at_every_latency(right: int) -> None:
    bundle = coreai_bundle("six", latency=80 * (right + 1))
    ours = Model(CoreAiRuntime(bundle)).transcribe(GOLDEN / "a0.wav", "de-DE")
    expected = json.loads((GOLDEN / "a0.json").read_text())
    if f"R{right}" in expected:  # NeMo's model was not made for the others
        tokens = expected[f"R{right}"]["tokens"]
    else:
        theirs = Model(reference_for(CoreAiRuntime(bundle))).transcribe(GOLDEN / "a0.wav", "de-DE")
        tokens = [token.id for token in theirs.tokens]
    assert [token.id for token in ours.tokens] == tokens


@pytest.mark.long
@pytest.mark.parametrize("tier", [1120, 2240, 4480])
def test_every_tier(tier: int) -> None:
    runtime = CoreAiRuntime(coreai_bundle("sharded", latency=tier))
    difference, _ = error_of(runtime, GOLDEN / "multi.nemo", 5, last_rows=3)
    assert difference < TOLERANCE
    ours = Model(runtime).transcribe(GOLDEN / "a0.wav", "de-DE")
    theirs = Model(reference_for(runtime)).transcribe(GOLDEN / "a0.wav", "de-DE")
    assert ours.tokens == theirs.tokens


@pytest.mark.long
@both_layouts
def test_a_model_without_a_prompt(layout: Layout, golden: Path) -> None:
    """The English form: another left context, another default latency, no language."""
    runtime = CoreAiRuntime(coreai_bundle(layout, golden / "en.nemo"))
    assert runtime.att_context == ((70, 13) if layout == "six" else (42, 13))
    difference, _ = error_of(runtime, golden / "en.nemo", 8, last_rows=11)
    assert difference < TOLERANCE
    ours = Model(runtime).transcribe(golden / "a0.wav")
    theirs = Model(reference_for(runtime, golden / "en.nemo")).transcribe(golden / "a0.wav")
    assert ours.tokens == theirs.tokens


@both_layouts
def test_packets_of_any_size_give_the_same_tokens(layout: Layout) -> None:
    samples = load_audio(GOLDEN / "a0.wav")[: 16000 * 2 + 123]
    raw = (samples * 32767).round().astype("<i2").tobytes()
    model, rng = Model(coreai_runtime(layout)), np.random.default_rng(0)

    def tokens(sizes: Iterator[int]) -> list[int]:
        with model.stream("de-DE", encoding="s16le") as session:
            position = 0
            for size in sizes:
                session.feed(raw[position : position + size])
                position += size
                if position >= len(raw):
                    break
            session.finish()
        return [token.id for token in session.transcript().tokens]

    whole = tokens(iter([len(raw)]))
    assert len(whole) > 10
    assert tokens(int(rng.integers(1, 2000)) for _ in count()) == whole


def test_the_fused_decoder_alone_gives_the_same_tokens() -> None:
    """What an app does with the layout "sharded": it knows the main entry points only."""
    runtime = coreai_runtime("sharded")
    samples = load_audio(GOLDEN / "a0.wav")[: 16000 * 2]
    config, assets = runtime.config, runtime.assets
    framer = UniformFramer(runtime.call_frames, config.num_mel_bins)
    framer.push(log_mel(samples, config.num_mel_bins, config.preemphasis))
    framer.finish()
    size = (config.predictor_layers, 1, config.predictor_hidden_size)
    h, c = np.zeros(size, np.float32), np.zeros(size, np.float32)
    last, tokens = config.blank_id, []
    caches = {
        f"encoder_shard_{k}_fp32": {
            name: np.zeros(*assets.signature(f"encoder_shard_{k}_fp32")[0][name])
            for name in ("cache_channel", "cache_time", "cache_len")
        }
        for k in range(4)
    }
    while framer.ready():
        call = framer.take(1)
        inputs = {"mel": call.mel.T[None], "length": np.array([call.length])}
        for name, cache in caches.items():
            result = assets.call(name, {**inputs, **cache, "prompt_id": np.array([9])})
            caches[name] = {key: result[f"{key}_out"] for key in cache}
            inputs = {"hidden": result.get("hidden_out"), "length": result["length_out"]}
        frame = symbols = 0
        while frame < int(result["length_out"][0]):
            given = {
                "token": np.array([[last]]),
                "token_length": np.array([1]),
                "h_in": h,
                "c_in": c,
                "encoder": result["encoded"],
            }
            step = assets.call(graphs.DECODER_JOINT, given)
            best = step["logits"][0].argmax(axis=1)
            while frame < int(result["length_out"][0]) and best[frame] == config.blank_id:
                frame, symbols = frame + 1, 0
            if frame == int(result["length_out"][0]):
                break
            last, h, c = int(best[frame]), step["h_out"], step["c_out"]
            tokens.append(last)
            symbols += 1
            if symbols == config.max_symbols:
                frame, symbols = frame + 1, 0
    expected = Model(runtime).transcribe(samples, "de-DE")
    assert tokens == [token.id for token in expected.tokens]
    assert len(tokens) > 10


def test_beam_search_equals_the_reference() -> None:
    runtime = coreai_runtime("six")
    assert isinstance(runtime, ForkingRuntime)
    samples = load_audio(GOLDEN / "a0.wav")[:16000]
    ours = Model(runtime).transcribe(samples, "de-DE", beam=2)
    theirs = Model(reference_for(runtime)).transcribe(samples, "de-DE", beam=2)
    assert [token.id for token in ours.tokens] == [token.id for token in theirs.tokens]


def test_it_can_be_called_from_any_thread() -> None:
    runtime = coreai_runtime("six")
    expected = chained(runtime, 2, 32)
    results: list[Float32] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: results.append(chained(runtime, 2, 32)))
        thread.start()
        thread.join()
    assert len(results) == 2
    assert all(np.array_equal(result, expected) for result in results)


def test_another_latency_is_refused() -> None:
    model = Model(coreai_runtime("six"))
    with (
        pytest.warns(UserWarning, match="not trained"),
        pytest.raises(ContextError, match=r"made for \[56, 3\]"),
    ):
        model.stream(latency=80)


def test_units_that_are_not_there_are_refused() -> None:
    with pytest.raises(BackendError, match="the valid ones are: cpu, gpu, neural-engine"):
        CoreAiRuntime(coreai_bundle("six"), compute_units="quantum")


def test_an_altered_graph_is_refused(tmp_path: Path) -> None:
    bundle = shutil.copytree(coreai_bundle("six"), tmp_path / "bundle")
    graph = bundle / "macos" / "joint.aimodel" / "main.mlirb"
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"joint.aimodel/main.mlirb does not have the SHA-256"):
        load(bundle)


def test_a_graph_that_the_manifest_does_not_list_is_refused(tmp_path: Path) -> None:
    bundle = shutil.copytree(coreai_bundle("six"), tmp_path / "bundle")
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"] = {name: file for name, file in manifest["files"].items() if "/joint." not in name}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"does not list macos/joint\.aimodel"):
        load(bundle)


def test_load_knows_the_bundle() -> None:
    assert load(coreai_bundle("six"), backend="coreai").backend == "coreai"
    with pytest.raises(BackendError, match="is a bundle for coreai and cannot run on onnx"):
        load(coreai_bundle("six"), backend="onnx")
    with pytest.raises(BackendError, match="threads itself"):
        load(coreai_bundle("six"), threads=2)


@pytest.mark.long
@both_layouts
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_the_embedded_model(layout: Layout, weights: str) -> None:
    bundle = coreai_bundle(layout, EMBEDDED, weights, "fp32")  # type: ignore[arg-type]
    runtime = CoreAiRuntime(bundle)
    difference, size = error_of(runtime, EMBEDDED, CHUNKS, last_rows=11)
    assert difference < (TOLERANCE if weights == "fp32" else INT8_BOUND * size)
    ours, theirs = Model(runtime), Model(reference_for(runtime, EMBEDDED))
    for recording in EXAMPLES:
        heard = ours.transcribe(recording)
        assert heard.tokens == theirs.transcribe(recording).tokens, recording
        assert len(heard.tokens) > 10


@pytest.mark.long
@both_layouts
@pytest.mark.parametrize("weights", ["fp16", "int8"])
def test_fp16_arithmetic(layout: Layout, weights: str) -> None:
    runtime = CoreAiRuntime(coreai_bundle(layout, weights=weights))  # type: ignore[arg-type]
    assert runtime.arithmetic == "fp16"
    assert coreai_runtime(layout).arithmetic == "fp32"
    decoders = {"six": ("predict", "joint"), "sharded": ("decoder_joint",)}[layout]
    for graph, entry in runtime.assets.entries():
        types = {dtype for side in runtime.assets.signature(graph, entry) for _, dtype in side.values()}
        assert types - {"int32"} == {"float32" if graph in decoders else "float16"}, (graph, entry)
    difference, size = error_of(runtime, GOLDEN / "multi.nemo", 6, last_rows=11)
    assert 1e-5 < difference < FP16_BOUNDS[weights] * size
