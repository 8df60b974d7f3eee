"""Times of words: against the most likely alignment, and against the times that a synthesiser used."""

from __future__ import annotations

import functools
import json
from itertools import combinations_with_replacement, pairwise
from pathlib import Path

import numpy as np
import pytest

import nemostream
from nemostream.audio import load_audio
from nemostream.decoding.scored import log_softmax
from nemostream.engine.model import Model
from nemostream.evaluate.align import encoder_frames, forced_frames
from nemostream.evaluate.errors import align
from nemostream.evaluate.normalize import simple
from nemostream.runtimes.torch import TorchRuntime
from tests.models import small_checkpoint, small_config

CLIPS = sorted((Path(__file__).parent.parent / "data" / "timed").glob("*.flac"))
FRAME = 0.08


@functools.cache
def model() -> Model:
    return nemostream.load(threads=1)


def path_score(table: np.ndarray, tokens: list[int], blank: int, frames: tuple[int, ...]) -> float:
    """Log-probability of emitting the tokens on these frames; ``table`` is [U + 1, T, V + 1]."""
    emitted = sum(table[count, frame, tokens[count]] for count, frame in enumerate(frames))
    blanks = sum(table[sum(f <= t for f in frames), t, blank] for t in range(table.shape[1]))
    return float(emitted + blanks)


def test_forced_alignment_is_the_best_of_all() -> None:
    """Against every path of 4 tokens through 5 frames."""
    runtime = TorchRuntime(small_checkpoint(small_config()))
    runtime.resize(1)
    blank = runtime.config.blank_id
    for seed in range(5):
        generator = np.random.default_rng(seed)
        encoded = generator.standard_normal((5, 32)).astype(np.float32) * 1.5
        tokens = generator.integers(0, runtime.config.vocab_size, 4).tolist()
        runtime.reset(0)
        rows = [runtime.predict([0], np.array([token])) for token in (blank, *tokens)]
        table = np.stack([log_softmax(runtime.joint_logits(encoded[None], row)[0]) for row in rows])

        paths = combinations_with_replacement(range(5), 4)
        best = max(paths, key=functools.partial(path_score, table, tokens, blank))
        assert tuple(forced_frames(runtime, 0, encoded, tokens)) == best
    assert forced_frames(runtime, 0, encoded, []) == []


@pytest.mark.parametrize("latency", [80, 560])
def test_tokens_are_emitted_where_the_best_alignment_has_them(latency: int) -> None:
    """Greedy decoding emits at the first frame that is ready; 80 ms, one frame, is what it may differ by."""
    off = []
    for clip in CLIPS:
        samples = load_audio(clip)
        transcript = model().transcribe(samples, latency=latency)
        frames = encoder_frames(model(), samples, att_context=model().att_context(latency))
        forced = forced_frames(model().engine.runtime, 0, frames, [token.id for token in transcript.tokens])
        off += [abs(token.frame - frame) for token, frame in zip(transcript.tokens, forced, strict=True)]
    assert len(off) > 40
    assert np.mean(np.array(off) <= 1) > 0.9


@functools.cache
def start_errors(latency: int) -> np.ndarray:
    """Start of every word that was recognised right, less its true start, in seconds."""
    errors = []
    for clip in CLIPS:
        truth = json.loads(clip.with_suffix(".json").read_text())["words"]
        words = model().transcribe(clip, latency=latency).words
        said, heard = [simple(word["word"]) for word in truth], [simple(word.text) or "-" for word in words]
        for chunk in align(said, heard).alignments[0]:
            if chunk.type == "equal":
                errors += [
                    words[chunk.hyp_start_idx + place].start - truth[chunk.ref_start_idx + place]["start"]
                    for place in range(chunk.ref_end_idx - chunk.ref_start_idx)
                ]
    return np.array(errors)


@pytest.mark.parametrize("latency", [80, 320, 1120])
def test_words_start_a_constant_delay_after_they_do(latency: int) -> None:
    """A model says a word once it has heard enough of it: that delay aside, starts are within 80 ms.

    The delay is the model's, not the engine's: it is the same whatever the latency.
    """
    errors = start_errors(latency)
    delay = np.median(errors)
    assert len(errors) >= 30  # words that the embedded model gets right
    assert 0.0 <= delay <= 0.2
    assert abs(delay - np.median(start_errors(560))) <= FRAME / 2
    assert np.mean(np.abs(errors - delay) <= FRAME) >= 0.8


@pytest.mark.parametrize("options", [{}, {"confidence": True}, {"beam": 3}])
def test_times_are_monotone_and_do_not_depend_on_how_audio_is_cut(options: dict[str, bool]) -> None:
    for clip in CLIPS[:2]:
        samples = load_audio(clip)
        whole = model().transcribe(samples, latency=320, **options)  # type: ignore[arg-type]
        for packet, chunks in ((333, 1), (5000, 3)):
            with model().stream(latency=320, chunks_per_call=chunks, **options) as session:  # type: ignore[arg-type]
                for start in range(0, len(samples), packet):
                    session.feed(samples[start : start + packet])
                session.finish()
                times = [(word.text, word.start, word.end) for word in session.transcript().words]
                assert times == [(word.text, word.start, word.end) for word in whole.words]
        assert all(word.start < word.end for word in whole.words)
        assert all(left.end <= right.start for left, right in pairwise(whole.words))
