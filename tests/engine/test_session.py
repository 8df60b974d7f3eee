"""Sessions: any packets, encodings, rates and neighbours give the tokens of the offline forward."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemostream.config import SAMPLE_RATE
from nemostream.decoding import GreedyDecoder, Hypothesis
from nemostream.engine.model import Model
from nemostream.errors import AudioError, ContextError, LanguageError, SessionError
from nemostream.features import log_mel
from nemostream.model.network import Network
from nemostream.results import Event
from nemostream.runtimes.torch import TorchRuntime, load_network
from tests.models import CONTEXTS, small_checkpoint, small_config

Tokens = list[tuple[int, int]]


@functools.cache
def shared_model() -> Model:
    return Model(TorchRuntime(small_checkpoint(small_config())))


@pytest.fixture
def model() -> Model:
    return shared_model()


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(small_checkpoint(small_config()))


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """Something that changes: tones and noise bursts."""
    count = int(seconds * SAMPLE_RATE)
    generator = np.random.default_rng(seed)
    time = np.arange(count) / SAMPLE_RATE
    sweep = np.sin(2 * np.pi * (200 + 900 * np.sin(time * 3)) * time)
    gate = np.repeat(generator.random(count // 1600 + 1), 1600)[:count]
    return ((sweep + 0.3 * generator.standard_normal(count)) * gate * 0.2).astype(np.float32)


def offline(
    model: Model, network: Network, samples: np.ndarray, context: tuple[int, int], prompt: int
) -> Tokens:
    """Whole-file features, one masked forward, one greedy decode."""
    mel = log_mel(samples)
    encoded, frames = network.encoder.encode_utterance(
        torch.from_numpy(mel)[None], torch.tensor([len(mel)]), context
    )
    projected = network.project(encoded, torch.tensor([prompt])).numpy()
    runtime = model.engine.runtime
    stream = model.engine.open(prompt, context)
    (tokens,) = GreedyDecoder(runtime).decode([stream.slot], [Hypothesis()], projected, frames.numpy())
    model.engine.close(stream)
    return tokens


def tokens_of(events: list[Event]) -> Tokens:
    return [(token.id, token.frame) for event in events for token in event.tokens]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("chunks", [1, 2, 8])
def test_equals_offline(model: Model, network: Network, context: tuple[int, int], chunks: int) -> None:
    samples = speech(4.33)
    expected = offline(model, network, samples, context, 9)
    assert len({token for token, _ in expected}) > 5  # the random model says something
    with model.stream("de-DE", att_context_size=context, chunks_per_call=chunks) as session:
        events = [event for part in np.array_split(samples, 37) for event in session.feed(part)]
        events += session.finish()
    assert tokens_of(events) == expected
    transcript = model.transcribe(samples, "de-DE", att_context_size=context)
    assert [(token.id, token.frame) for token in transcript.tokens] == expected
    assert "".join(event.text for event in events) == transcript.text


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2 * 3 * SAMPLE_RATE), st.sampled_from([0, 1, 3, 13]))
def test_every_split_point_of_three_seconds(cut: int, right: int) -> None:
    """The cut may fall inside a sample."""
    model = shared_model()
    data = (speech(3.0) * 32767).astype("<i2").tobytes()
    with model.stream(att_context_size=(56, right), encoding="s16le") as session:
        events = session.feed(data[:cut]) + session.feed(data[cut:]) + session.finish()
    with model.stream(att_context_size=(56, right), encoding="s16le") as session:
        expected = session.feed(data) + session.finish()
    assert tokens_of(events) == tokens_of(expected)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 9000), min_size=1, max_size=30),
    st.sampled_from(["s16le", "f32le", "mulaw", "alaw"]),
)
def test_any_packets(sizes: list[int], encoding: str) -> None:
    model = shared_model()
    samples = speech(1.5)
    code = np.random.default_rng(1).integers(0, 256, 24000).astype(np.uint8)
    data = {
        "s16le": (samples * 32767).astype("<i2").tobytes(),
        "f32le": samples.astype("<f4").tobytes(),
        "mulaw": code.tobytes(),
        "alaw": code.tobytes(),
    }[encoding]
    with model.stream(encoding=encoding, sample_rate=8000) as session:
        expected = session.feed(data) + session.finish()
    with model.stream(encoding=encoding, sample_rate=8000) as session:
        events, start = [], 0
        for size in [*sizes, len(data)]:
            events += session.feed(data[start : start + size])
            start += size
        events += session.finish()
    assert tokens_of(events) == tokens_of(expected)


@pytest.mark.parametrize("samples", [0, 1, 159, 160, 161, 1279, 1280, 1281, 5000])
def test_tiny_streams(model: Model, network: Network, samples: int) -> None:
    audio = speech(1.0)[:samples]
    with model.stream("en-US") as session:
        events = session.feed(audio) + session.finish()
    assert events[-1].final
    expected = offline(model, network, audio, (56, 3), 0) if samples >= 160 else []
    assert tokens_of(events) == expected


def test_streams_together_equal_streams_alone(model: Model) -> None:
    """Different clocks, languages and contexts; joining and leaving; reused slots."""
    jobs = [(speech(2.0 + seed, seed), CONTEXTS[seed % 5], (0, 9, 101)[seed % 3]) for seed in range(6)]
    engine = model.engine

    def run(group: list[int], delays: list[int]) -> list[Tokens]:
        streams = {job: engine.open(jobs[job][2], jobs[job][1]) for job in group}
        results: dict[int, Tokens] = {job: [] for job in group}
        position = {job: -delay * 4000 for job, delay in zip(group, delays, strict=True)}
        while streams:
            for job in list(streams):
                samples = jobs[job][0]
                start, position[job] = position[job], position[job] + 4000
                if 0 <= start < len(samples):
                    streams[job].feed(samples[start : start + 4000])
                if position[job] >= len(samples) and not streams[job].framer.finished:
                    streams[job].finish()
            order = list(streams)
            for job, tokens in zip(order, engine.step([streams[job] for job in order]), strict=True):
                results[job] += tokens
            for job in order:
                if streams[job].framer.finished and not streams[job].framer.ready():
                    engine.close(streams.pop(job))
        return [results[job] for job in group]

    alone = [run([job], [0])[0] for job in range(6)]
    assert all(alone)
    assert run(list(range(6)), [0, 5, 1, 0, 9, 2]) == alone
    assert run(list(reversed(range(6))), [3, 0, 0, 1, 0, 7]) == alone[::-1]


def test_language_can_change_in_mid_stream(model: Model) -> None:
    samples = speech(3.0)

    def run(second: str) -> Tokens:
        with model.stream("en-US", latency=80) as session:
            events = session.feed(samples[:24000])
            session.language = second
            events += session.feed(samples[24000:]) + session.finish()
        return tokens_of(events)

    stay, change = run("en-US"), run("de-DE")
    assert stay != change
    border = 24000 // 1280 - 1
    assert [pair for pair in stay if pair[1] < border] == [pair for pair in change if pair[1] < border]


def test_channels_of_a_file(model: Model, tmp_path: Path) -> None:
    left, right = speech(2.0, 1), speech(2.0, 2)
    soundfile.write(tmp_path / "two.wav", np.stack([left, right], 1), SAMPLE_RATE, subtype="FLOAT")
    for number, samples in enumerate((left, right)):
        ours = model.transcribe(tmp_path / "two.wav", channels=number)
        assert ours.tokens == model.transcribe(samples).tokens
    assert model.transcribe(tmp_path / "two.wav").tokens == model.transcribe((left + right) / 2).tokens
    with pytest.raises(AudioError, match=r"two\.wav"):
        model.transcribe(tmp_path / "two.wav", channels=2)


def test_slots_are_given_back(model: Model) -> None:
    before = model.engine.runtime.slots
    for _ in range(20):
        with model.stream() as session:
            session.feed(speech(0.5))
        model.transcribe(speech(0.5))
    assert model.engine.runtime.slots <= max(before, 2)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda m: m.stream("xx-XX"), LanguageError, "en-US"),
        (lambda m: m.stream(latency=100), ContextError, "80"),
        (lambda m: m.stream(att_context_size=(50, 3)), ContextError, "multiple"),
        (lambda m: m.stream(att_context_size=(560, 3)), ContextError, "room"),
        (lambda m: m.stream(encoding="mp3"), AudioError, "s16le"),
        (lambda m: m.stream(sample_rate=0), AudioError, "rate"),
        (lambda m: m.stream(num_channels=2, channel=2), AudioError, "channel"),
        (lambda m: m.stream(chunks_per_call=0), SessionError, "chunks_per_call"),
        (lambda m: m.stream().feed(b"ab"), SessionError, "encoding"),
        (lambda m: m.stream().feed(np.zeros((10, 2), np.float32)), AudioError, "channels"),
        (lambda m: m.stream().feed(np.array([0.0, np.nan], np.float32)), AudioError, "sample 1"),
        (lambda m: m.transcribe(np.zeros(0, np.float32)), AudioError, "no samples"),
        (lambda m: m.transcribe("missing.wav"), AudioError, "missing.wav"),
    ],
)
def test_errors_say_what_to_do(model: Model, act: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        act(model)  # type: ignore[operator]


def test_a_bad_packet_does_not_end_the_session(model: Model) -> None:
    samples = speech(2.0)
    with model.stream() as session:
        events = session.feed(samples[:16000])
        with pytest.raises(AudioError):
            session.feed(np.full(10, np.nan, np.float32))
        events += session.feed(samples[16000:]) + session.finish()
        with pytest.raises(SessionError):
            session.feed(samples)
    assert tokens_of(events) == [(t.id, t.frame) for t in model.transcribe(samples).tokens]


def test_an_untrained_context_warns(model: Model) -> None:
    with pytest.warns(UserWarning, match="not trained"):
        model.stream(att_context_size=(42, 13)).close()
