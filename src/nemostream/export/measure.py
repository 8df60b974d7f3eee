"""What a bundle's weights cost in exactness: it and the reference on the same recordings, by one engine.

They are read and heard block by block, and of numbers only sums are kept: memory does not grow with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nemostream.audio import stream_audio
from nemostream.checkpoints.bundle import MANIFEST, Manifest, read_manifest
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.files import write_json
from nemostream.config import SAMPLE_RATE, ModelConfig
from nemostream.engine.engine import Engine
from nemostream.errors import LanguageError
from nemostream.evaluate.errors import Errors, count_errors, unit_of
from nemostream.evaluate.manifest import read_manifest as read_utterances
from nemostream.evaluate.normalize import language_code, simple
from nemostream.runtimes.onnx import OnnxRuntime
from nemostream.runtimes.protocol import Float32, Int64, Runtime
from nemostream.runtimes.torch import TorchRuntime

MOST_SECONDS = 600.0  # of a recording; the reference takes about as long as it lasts
LONG_SECONDS = 120.0  # of the recording made of a manifest: errors of small weights grow with length
PAUSE_SECONDS = 0.5  # between the utterances in it
_BLOCK_SECONDS = 5.0


def record_error(folder: Path, checkpoint: Checkpoint, sources: Sequence[Path]) -> Manifest:
    """Put what `measure_errors` finds of an ONNX bundle in its manifest, as ``{"parts": [...]}``.

    Args:
        folder: the bundle.
        checkpoint: what it was made from.
        sources: recordings or manifests.

    Raises:
        AudioError, ManifestError, LanguageError: see `measure_errors`.
    """
    bundle = OnnxRuntime(folder, verify=False)
    parts = [part for (part,) in measure_errors(checkpoint, [bundle], sources)]
    manifest = dataclasses.replace(read_manifest(folder, verify=False), measured={"parts": parts})
    write_json(folder / MANIFEST, manifest.to_dict())
    return manifest


def measure_errors(
    checkpoint: Checkpoint, ports: Sequence[Runtime], sources: Sequence[Path]
) -> Iterator[list[dict[str, Any]]]:
    """Measure runtimes against their checkpoint in fp32 PyTorch.

    All step through each recording chunk by chunk at the model's default latency, so errors in the state
    that streams carry are in the figures too.

    Args:
        checkpoint: what they were made from.
        ports: the runtimes.
        sources: recordings of speech, or manifests (``.jsonl``, see `nemostream.evaluate.manifest`), which
            also give word error rates; a manifest's utterances are measured one by one, and the first ones in
            a row as one recording of `LONG_SECONDS`. Of every recording the first `MOST_SECONDS` are used.

    Yields:
        of every part, when it is done, for each runtime: ``on``, the part's name; its ``recordings``,
        ``seconds``, and ``tokens`` of the reference; what `Comparison.result` gives; of a manifest
        ``wer_fp32`` and ``wer``.

    Raises:
        AudioError: if a recording cannot be read.
        ManifestError: if a manifest cannot be read.
        LanguageError: if the model does not know a language.
    """
    listeners = [_Listener(runtime) for runtime in (TorchRuntime(checkpoint), *ports)]
    for path in sources:
        for name, clips in _parts(path):
            yield _measure(listeners, name, clips)


class Comparison:
    """Errors of encoder frames and tokens, added up."""

    def __init__(self) -> None:
        self._max_abs = self._cosines = 0.0
        self._frames = self._edits = self._tokens = 0

    def add_frames(self, expected: Float32, found: Float32) -> None:
        """Some more frames [N, J] of both sides."""
        if not len(expected):
            return
        a, b = expected.astype(np.float64), found.astype(np.float64)
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        self._max_abs = max(self._max_abs, float(np.abs(a - b).max()))
        self._cosines += float(((a * b).sum(axis=1) / np.maximum(norms, 1e-30)).sum())
        self._frames += len(a)

    def add_tokens(self, expected: list[int], found: list[int]) -> None:
        """All tokens of one more recording."""
        self._edits += edit_distance(expected, found)
        self._tokens += max(len(expected), len(found))

    def result(self) -> dict[str, float]:
        """The errors of all of them together.

        Returns:
            ``max_abs``: largest difference of a number; ``cosine``: the mean, over frames, of the cosine
            between the two; ``token_agreement``: 1 - edit distance / tokens of the longer side.
        """
        return {
            "max_abs": float(f"{self._max_abs:.3g}"),
            "cosine": round(self._cosines / max(self._frames, 1), 6),
            "token_agreement": round(1 - self._edits / max(self._tokens, 1), 4),
        }


def edit_distance(a: list[int], b: list[int]) -> int:
    """Fewest insertions, deletions and replacements that turn ``a`` into ``b``."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


@dataclass
class _Clip:
    """Recordings that are heard as one, until `LONG_SECONDS` are over when one of them begins.

    Attributes:
        recordings: paths, and what is said there, if that is known.
        lang: their language; None is the model's default.
        said: the texts of those that were heard.
    """

    recordings: Sequence[tuple[Path, str | None]]
    lang: str | None = None
    said: list[str] = field(default_factory=list)

    def blocks(self) -> Iterator[Float32]:
        """16 kHz mono samples, a few seconds at a time."""
        heard = 0
        for path, text in self.recordings:
            if heard >= LONG_SECONDS * SAMPLE_RATE:
                break
            if heard:
                heard += (pause := round(PAUSE_SECONDS * SAMPLE_RATE))
                yield np.zeros(pause, np.float32)
            left = round(MOST_SECONDS * SAMPLE_RATE)
            for samples in stream_audio(path, block_seconds=_BLOCK_SECONDS):
                heard += len(samples[:left])
                yield samples[:left]
                left -= len(samples)
                if left <= 0:
                    break
            if text is not None:
                self.said.append(text)


def _parts(path: Path) -> Iterator[tuple[str, list[_Clip]]]:
    """What is measured together, by its name: a recording; or a manifest's utterances, and they in a row."""
    if path.suffix != ".jsonl":
        yield path.name, [_Clip([(path, None)])]
        return
    name, utterances = f"{path.parent.name}/{path.name}", read_utterances(path)
    yield name, [_Clip([(one.audio, one.text)], one.lang) for one in utterances]
    lang = utterances[0].lang
    row = [(one.audio, one.text) for one in utterances if one.lang == lang]
    yield f"{name} in a row", [_Clip(row, lang)]


def _measure(listeners: Sequence[_Listener], name: str, clips: Sequence[_Clip]) -> list[dict[str, Any]]:
    """Errors over all clips together of all listeners but the first, which is the reference."""
    comparisons = [Comparison() for _ in listeners[1:]]
    errors = [Errors() for _ in listeners]
    samples = tokens = 0
    for clip in clips:
        for listener in listeners:
            listener.begin(clip.lang)
        for block in clip.blocks():
            samples += len(block)
            _compare_frames([listener.feed(block) for listener in listeners], comparisons)
        _compare_frames([listener.finish() for listener in listeners], comparisons)
        expected = listeners[0].tokens
        tokens += len(expected)
        for comparison, listener in zip(comparisons, listeners[1:], strict=True):
            comparison.add_tokens(expected, listener.tokens)
        if clip.said:
            errors = [sum_ + listener.errors(clip) for sum_, listener in zip(errors, listeners, strict=True)]
    common = {
        "on": name,
        "recordings": len(clips),
        "seconds": round(samples / SAMPLE_RATE, 1),
        "tokens": tokens,
    }
    rates = [{"wer_fp32": round(errors[0].rate, 4), "wer": round(one.rate, 4)} for one in errors[1:]]
    return [
        common | comparison.result() | (rate if clips[0].said else {})
        for comparison, rate in zip(comparisons, rates, strict=True)
    ]


def _compare_frames(frames: list[Float32], comparisons: Sequence[Comparison]) -> None:
    for comparison, found in zip(comparisons, frames[1:], strict=True):
        comparison.add_frames(frames[0], found)


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


class _Listener:
    """A runtime that hears one clip after another, in one slot.

    Attributes:
        tokens: of the clip so far.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._recorder = runtime, _Recorder(runtime)
        recorder: Any = self._recorder
        self._engine = Engine(recorder)
        self.tokens: list[int] = []

    def begin(self, lang: str | None) -> None:
        """Another clip, in a language that the model knows."""
        config = self._runtime.config
        self._stream = self._engine.open(_prompt_id(config, lang), config.default_att_context)
        self.tokens = []

    def feed(self, samples: Float32) -> Float32:
        """Encoder frames [N, J] that 16 kHz samples make complete."""
        self._stream.feed(samples)
        return self._step()

    def finish(self) -> Float32:
        """The clip's last frames."""
        self._stream.finish()
        frames = self._step()
        self._engine.close(self._stream)
        return frames

    def errors(self, clip: _Clip) -> Errors:
        """Of the words that were heard."""
        lang, heard = clip.lang or "en", self._runtime.tokenizer.decode(self.tokens)
        return count_errors(simple(" ".join(clip.said), lang), simple(heard, lang), unit_of(lang))

    def _step(self) -> Float32:
        while self._stream.framer.ready():
            (new,) = self._engine.step([self._stream])
            self.tokens += [token for token, _ in new]
        frames = self._recorder.frames or [np.zeros((0, self._runtime.config.joint_hidden_size), np.float32)]
        self._recorder.frames = []
        return np.concatenate(frames)


def _prompt_id(config: ModelConfig, lang: str | None) -> int:
    """Of a manifest's language, which may lack its region."""
    try:
        return config.prompt_id(lang)
    except LanguageError:
        names = [name for name in config.prompts if language_code(name) == language_code(lang or "")]
        if not names:
            raise
        return config.prompt_id(names[0])
