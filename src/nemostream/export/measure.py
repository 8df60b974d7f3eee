"""What a bundle's weights cost in exactness: it and the reference on one recording, through one engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from nemostream.audio import AudioFile, Resampler, select_channels
from nemostream.checkpoints.bundle import MANIFEST, Manifest, read_manifest
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.files import write_json
from nemostream.config import SAMPLE_RATE
from nemostream.engine.engine import Engine
from nemostream.runtimes.onnx import OnnxRuntime
from nemostream.runtimes.protocol import Float32, Int64, Runtime
from nemostream.runtimes.torch import TorchRuntime

MOST_SECONDS = 30.0  # of the recording; the reference takes about as long as it lasts


def record_error(folder: Path, checkpoint: Checkpoint, recording: Path) -> Manifest:
    """Measure an ONNX bundle against its checkpoint in fp32 PyTorch, and put the result in its manifest.

    Both step through the recording chunk by chunk at the model's default latency, so errors in the state
    that streams carry are in the figures too.

    Args:
        folder: the bundle.
        checkpoint: what it was made from.
        recording: speech; its first `MOST_SECONDS` are used.

    Raises:
        AudioError: if the recording cannot be read.
    """
    samples = _read(recording)
    expected = _run(TorchRuntime(checkpoint), samples)
    found = _run(OnnxRuntime(folder, verify=False), samples)
    measured = {
        "recording": recording.name,
        "seconds": round(len(samples) / SAMPLE_RATE, 2),
        "tokens": len(expected[1]),
        **compare(expected, found),
    }
    manifest = dataclasses.replace(read_manifest(folder, verify=False), measured=measured)
    write_json(folder / MANIFEST, manifest.to_dict())
    return manifest


def compare(expected: tuple[Float32, list[int]], found: tuple[Float32, list[int]]) -> dict[str, float]:
    """Errors of encoder frames [N, J] and tokens.

    Returns:
        ``max_abs``: largest difference of a number; ``cosine``: the mean, over frames, of the cosine
        between the two; ``token_agreement``: 1 - edit distance / tokens of the longer side.
    """
    a, b = expected[0].astype(np.float64), found[0].astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = (a * b).sum(axis=1) / np.maximum(norms, 1e-30)
    longest = max(len(expected[1]), len(found[1]), 1)
    return {
        "max_abs": float(f"{np.abs(a - b).max():.3g}"),
        "cosine": round(float(cosine.mean()), 6),
        "token_agreement": round(1 - edit_distance(expected[1], found[1]) / longest, 4),
    }


def edit_distance(a: list[int], b: list[int]) -> int:
    """Fewest insertions, deletions and replacements that turn ``a`` into ``b``."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def _read(recording: Path) -> Float32:
    """The first `MOST_SECONDS` as 16 kHz mono."""
    with AudioFile(recording) as file:
        resampler = Resampler(file.sample_rate, SAMPLE_RATE)
        wanted, blocks = round(MOST_SECONDS * SAMPLE_RATE), []
        for block in file.blocks(file.sample_rate):
            blocks.append(resampler.feed(select_channels(block, "mix")))
            if sum(map(len, blocks)) >= wanted:
                break
    return np.concatenate([*blocks, resampler.finish()])[:wanted]


class _Recorder:
    """A runtime that keeps what its encoder gives; everything else is the other's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.frames: list[Float32] = []

    def encode(self, *arguments: Any) -> tuple[Float32, Int64]:
        encoded, lengths = self._runtime.encode(*arguments)
        self.frames.append(encoded[0, : lengths[0]].copy())
        return encoded, lengths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


def _run(runtime: Runtime, samples: Float32) -> tuple[Float32, list[int]]:
    recorder: Any = _Recorder(runtime)
    config = runtime.config
    engine = Engine(recorder)
    stream = engine.open(config.prompt_id(None), config.default_att_context)
    stream.feed(samples)
    stream.finish()
    tokens: list[int] = []
    while stream.framer.ready():
        (new,) = engine.step([stream])
        tokens += [token for token, _ in new]
    return np.concatenate(recorder.frames), tokens
