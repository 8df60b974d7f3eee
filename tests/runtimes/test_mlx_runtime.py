"""MLX computes what the reference network computes, for many streams at once and from any thread."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from nemostream.checkpoints import load_checkpoint
from nemostream.engine.model import Model
from nemostream.runtimes.protocol import Runtime
from nemostream.runtimes.torch import TorchRuntime
from tests.conftest import REPOSITORY
from tests.models import small_checkpoint, small_config

pytest.importorskip("mlx.core", exc_type=ImportError, reason="the extra mlx is not installed")

from nemostream.runtimes.mlx import MlxRuntime

GOLDEN = REPOSITORY / "tests" / "data" / "golden"
CONTEXTS = np.array([[56, 3], [56, 1]])
# of the largest encoder output; half precision rounds to 11 (fp16) or 8 (bf16) bits, and the errors of the
# some 200 operations of two layers, if they do not depend on each other, add up as their root
BOUNDS = {"fp32": 1e-5, "fp16": 16 * 2**-11, "bf16": 16 * 2**-8}


def mel_of(calls: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((calls, 2, 32, 128)).astype(np.float32)


def encode_all(runtime: Runtime, mel: np.ndarray, rows: list[int]) -> np.ndarray:
    """Six calls of the given rows, slot = row."""
    runtime.resize(2)
    for row in rows:
        runtime.reset(row)
    outputs = []
    for call in mel:
        full = np.full(len(rows), 32)
        encoded, _ = runtime.encode(rows, call[rows], full, np.array([9, 0])[rows], CONTEXTS[rows])
        outputs.append(encoded)
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize("prompt", [True, False])
def test_six_steps_of_two_calls_equal_the_reference(prompt: bool) -> None:
    checkpoint = small_checkpoint(small_config(prompt=prompt))
    mel = mel_of(6)
    ours, theirs = (encode_all(kind(checkpoint), mel, [0, 1]) for kind in (MlxRuntime, TorchRuntime))
    assert np.abs(ours - theirs).max() < BOUNDS["fp32"] * np.abs(theirs).max()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_stays_near(precision: str) -> None:
    checkpoint = small_checkpoint(small_config())
    mel = mel_of(6)
    ours = encode_all(MlxRuntime(checkpoint, precision=precision), mel, [0, 1])
    theirs = encode_all(TorchRuntime(checkpoint), mel, [0, 1])
    difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert 1e-6 < difference < BOUNDS[precision]


def test_a_stream_does_not_depend_on_its_neighbour() -> None:
    runtime = MlxRuntime(small_checkpoint(small_config()))
    mel = mel_of(6)
    together = encode_all(runtime, mel, [0, 1])
    for row in (0, 1):
        alone = encode_all(runtime, mel, [row])  # the slot is used again, after a reset
        assert np.abs(alone[0] - together[row]).max() < 1e-5 * np.abs(together).max()


@pytest.mark.parametrize("right", [0, 3, 6, 13])
def test_tokens_of_nemo(right: int) -> None:
    expected = json.loads((GOLDEN / "a0.json").read_text())[f"R{right}"]
    model = Model(MlxRuntime(load_checkpoint(GOLDEN / "multi.nemo")))
    transcript = model.transcribe(GOLDEN / "a0.wav", "de-DE", latency=80 * (right + 1))
    assert [token.id for token in transcript.tokens] == expected["tokens"]
    assert [token.frame for token in transcript.tokens] == expected["frames"]


def test_it_can_be_called_from_any_thread() -> None:
    runtime = MlxRuntime(small_checkpoint(small_config()))
    mel = mel_of(2)
    expected = encode_all(runtime, mel, [0, 1])
    results: list[np.ndarray] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: results.append(encode_all(runtime, mel, [0, 1])))
        thread.start()
        thread.join()
    assert len(results) == 3
    assert all(np.array_equal(result, expected) for result in results)


def test_precision_is_chosen_when_a_model_is_loaded() -> None:
    """Half precision hears what single precision does; for every example see `test_mlx_streams`."""
    import nemostream
    from nemostream.errors import BackendError

    examples = sorted((REPOSITORY / "examples").glob("*.flac"))[:1]
    single, half = (nemostream.load(backend="mlx", precision=precision) for precision in ("fp32", "fp16"))
    for path in examples:
        tokens = [[token.id for token in model.transcribe(path).tokens] for model in (single, half)]
        assert tokens[0] == tokens[1], path.name
        assert tokens[0]
    with pytest.raises(BackendError, match="fp8"):
        nemostream.load(backend="mlx", precision="fp8")
    with pytest.raises(BackendError, match="leave it out"):
        nemostream.load(precision="fp16")


def test_files_in_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    """``--jobs`` leaves the threads to a runtime that chooses them itself."""
    from nemostream.cli.main import main

    files = [str(path) for path in sorted((REPOSITORY / "examples").glob("*.flac"))[:2]]
    assert main(["transcribe", *files, "--backend", "mlx", "-j", "2"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) >= 2
