"""The resampler: one state for the whole stream, no trace of packets, no lost tail."""

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from nemostream.audio import Resampler
from nemostream.errors import AudioError, SessionError

RATES = [4000, 8000, 11025, 16000, 22050, 44100, 48000, 96000, 384000]


def noise(count: int) -> np.ndarray:
    return (np.random.default_rng(count).standard_normal(count) * 0.1).astype(np.float32)


def resampled(rate: int, packets: list[np.ndarray]) -> np.ndarray:
    resampler = Resampler(rate)
    parts = [resampler.feed(packet) for packet in packets]
    return np.concatenate([*parts, resampler.finish()])


@settings(max_examples=80, deadline=None)
@given(
    rate=st.sampled_from(RATES),
    count=st.integers(0, 9000),
    cuts=st.lists(st.integers(0, 9000), max_size=40),
)
def test_any_split_gives_bit_identical_output(rate, count, cuts):
    signal = noise(count)
    whole = resampled(rate, [signal])
    np.testing.assert_array_equal(
        resampled(rate, np.split(signal, sorted(c % (count + 1) for c in cuts))), whole
    )
    assert abs(len(whole) - round(count * 16000 / rate)) <= 1


@pytest.mark.parametrize("rate", [8000, 44100, 48000])
def test_single_sample_packets_give_bit_identical_output(rate):
    signal = noise(3000)
    np.testing.assert_array_equal(resampled(rate, list(signal[:, None])), resampled(rate, [signal]))


@pytest.mark.parametrize("rate", RATES)
def test_a_stream_equals_a_one_shot_conversion(rate):
    signal = noise(20_000)
    np.testing.assert_array_equal(resampled(rate, np.split(signal, 10)), soxr.resample(signal, rate, 16000))


@pytest.mark.parametrize(("rate", "samples"), [(8000, 80), (44100, 441), (48000, 480)])
def test_finish_gives_the_tail_that_the_filter_held(rate, samples):
    resampler = Resampler(rate)
    fed = resampler.feed(np.ones(samples, np.float32))
    tail = resampler.finish()
    assert len(tail) > 0
    assert len(fed) + len(tail) == 160  # 10 ms


@pytest.mark.parametrize("rate", [8000, 44100])
def test_a_tone_keeps_its_frequency_and_level(rate):
    seconds = 2
    tone = (0.5 * np.sin(2 * np.pi * 1000 * np.arange(rate * seconds) / rate)).astype(np.float32)
    got = resampled(rate, np.split(tone, 100))
    expected = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(16000 * seconds) / 16000)
    np.testing.assert_allclose(got[500:-500], expected[500:-500], atol=1e-4)


def test_equal_rates_pass_the_samples_through():
    signal = noise(100)
    resampler = Resampler(16000)
    np.testing.assert_array_equal(resampler.feed(signal), signal)
    assert len(resampler.finish()) == 0


def test_samples_that_are_not_contiguous_are_read_correctly():
    stereo = np.stack([noise(4000), np.zeros(4000, np.float32)], axis=1)
    np.testing.assert_array_equal(resampled(8000, [stereo[:, 0]]), resampled(8000, [noise(4000)]))


@pytest.mark.parametrize(
    "rate", [0, -16000, 3999, 384_001, 16000.5, float("nan"), float("inf"), "16000", True]
)
def test_rates_that_cannot_be_are_refused(rate):
    with pytest.raises(AudioError, match=r"source sample rate.*4000 to 384000 Hz"):
        Resampler(rate)
    with pytest.raises(AudioError, match=r"target sample rate.*4000 to 384000 Hz"):
        Resampler(16000, rate)


@pytest.mark.parametrize("samples", [np.zeros((4, 1), np.float32), np.zeros(4), np.zeros(4, np.int16)])
@pytest.mark.parametrize("rate", [8000, 16000])
def test_only_float32_mono_is_taken(rate, samples):
    with pytest.raises(AudioError, match="float32"):
        Resampler(rate).feed(samples)


@pytest.mark.parametrize("rate", [8000, 16000])
def test_a_finished_stream_takes_no_more(rate):
    resampler = Resampler(rate)
    resampler.finish()
    with pytest.raises(SessionError, match="finish"):
        resampler.feed(noise(10))
    with pytest.raises(SessionError, match="finish"):
        resampler.finish()
