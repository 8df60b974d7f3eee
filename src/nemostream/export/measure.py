"""What a bundle's weights cost in exactness: it and the reference on the same recordings, by one engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemostream.audio import AudioFile, Resampler, select_channels
from nemostream.checkpoints.bundle import MANIFEST, Manifest, read_manifest
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.files import write_json
from nemostream.config import SAMPLE_RATE, ModelConfig
from nemostream.engine.engine import Engine
from nemostream.errors import LanguageError
from nemostream.evaluate.errors import Errors, count_errors, unit_of
from nemostream.evaluate.manifest import Utterance
from nemostream.evaluate.manifest import read_manifest as read_utterances
from nemostream.evaluate.normalize import language_code, simple
from nemostream.runtimes.onnx import OnnxRuntime
from nemostream.runtimes.protocol import Float32, Int64, Runtime
from nemostream.runtimes.torch import TorchRuntime

MOST_SECONDS = 30.0  # of a recording; the reference takes about as long as it lasts
LONG_SECONDS = 40.0  # of the recording that is made of a manifest's: errors of small weights grow with length
PAUSE_SECONDS = 0.5  # between the utterances in it


def record_error(folder: Path, checkpoint: Checkpoint, sources: Sequence[Path]) -> Manifest:
    """Measure an ONNX bundle against its checkpoint in fp32 PyTorch, and put the result in its manifest.

    Both step through each recording chunk by chunk at the model's default latency, so errors in the state
    that streams carry are in the figures too.

    Args:
        folder: the bundle.
        checkpoint: what it was made from.
        sources: recordings of speech, or manifests (``.jsonl``, see `nemostream.evaluate.manifest`), which
            also give word error rates; a manifest's utterances are measured one by one, and in a row as one
            recording of `LONG_SECONDS`. Of every recording the first `MOST_SECONDS` are used.

    Raises:
        AudioError: if a recording cannot be read.
        ManifestError: if a manifest cannot be read.
        LanguageError: if the model does not know a language.
    """
    reference, bundle = TorchRuntime(checkpoint), OnnxRuntime(folder, verify=False)
    parts = [_measure(reference, bundle, name, clips) for path in sources for name, clips in _parts(path)]
    manifest = dataclasses.replace(read_manifest(folder, verify=False), measured={"parts": parts})
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


@dataclass(frozen=True)
class _Clip:
    """16 kHz samples, and what is said in them, if that is known."""

    samples: Float32
    text: str | None
    lang: str | None


def _parts(path: Path) -> Iterator[tuple[str, list[_Clip]]]:
    """What is measured together, by its name: a recording; or a manifest's utterances, and they in a row."""
    if path.suffix != ".jsonl":
        yield path.name, [_Clip(_read(path), None, None)]
        return
    name, utterances = f"{path.parent.name}/{path.name}", read_utterances(path)
    clips = [_Clip(_read(one.audio), one.text, one.lang) for one in utterances]
    yield name, clips
    yield f"{name} in a row", [_in_a_row(utterances, clips)]


def _in_a_row(utterances: Sequence[Utterance], clips: Sequence[_Clip]) -> _Clip:
    """Utterances of the first one's language behind each other."""
    lang, pause = utterances[0].lang, np.zeros(round(PAUSE_SECONDS * SAMPLE_RATE), np.float32)
    samples: list[Float32] = []
    texts: list[str] = []
    for clip in clips:
        if clip.lang == lang and sum(map(len, samples)) < LONG_SECONDS * SAMPLE_RATE:
            samples += [clip.samples, pause]
            texts.append(clip.text or "")
    return _Clip(np.concatenate(samples), " ".join(texts), lang)


def _measure(reference: Runtime, bundle: Runtime, name: str, clips: Sequence[_Clip]) -> dict[str, Any]:
    """Errors over all clips together; see `compare`."""
    runs = [(_run(reference, clip), _run(bundle, clip)) for clip in clips]
    sides = tuple(np.concatenate([run[side][0] for run in runs]) for side in (0, 1))
    edits = sum(edit_distance(expected[1], found[1]) for expected, found in runs)
    longest = sum(max(len(expected[1]), len(found[1])) for expected, found in runs)
    measured = {
        "on": name,
        "recordings": len(clips),
        "seconds": round(sum(len(clip.samples) for clip in clips) / SAMPLE_RATE, 1),
        "tokens": sum(len(expected[1]) for expected, _ in runs),
        **compare((sides[0], []), (sides[1], [])),
        "token_agreement": round(1 - edits / max(longest, 1), 4),
    }
    if clips[0].text is not None:
        for key, side in (("wer_fp32", 0), ("wer", 1)):
            heard = [reference.tokenizer.decode(run[side][1]) for run in runs]
            measured[key] = round(_errors(clips, heard).rate, 4)
    return measured


def _errors(clips: Sequence[_Clip], heard: Sequence[str]) -> Errors:
    return Errors.sum(
        [
            count_errors(simple(clip.text or "", clip.lang or "en"), simple(text), unit_of(clip.lang or "en"))
            for clip, text in zip(clips, heard, strict=True)
        ]
    )


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


def _run(runtime: Runtime, clip: _Clip) -> tuple[Float32, list[int]]:
    """Encoder frames [N, J] and tokens."""
    recorder: Any = _Recorder(runtime)
    config = runtime.config
    engine = Engine(recorder)
    stream = engine.open(_prompt_id(config, clip.lang), config.default_att_context)
    stream.feed(clip.samples)
    stream.finish()
    tokens: list[int] = []
    while stream.framer.ready():
        (new,) = engine.step([stream])
        tokens += [token for token, _ in new]
    return np.concatenate(recorder.frames), tokens


def _prompt_id(config: ModelConfig, lang: str | None) -> int:
    """Of a manifest's language, which may lack its region."""
    try:
        return config.prompt_id(lang)
    except LanguageError:
        names = [name for name in config.prompts if language_code(name) == language_code(lang or "")]
        if not names:
            raise
        return config.prompt_id(names[0])
