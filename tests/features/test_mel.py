"""The front end equals Hugging Face's and NeMo's, and does not notice packets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from nemostream.features import IncrementalLogMel, log_mel, mel_filterbank

# log of a band that is nearly empty magnifies the rounding of a float32 transform; the two references
# differ from a float64 transform by as much
TOLERANCE = 2e-3
TYPICAL = 1e-4


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(samples) * 0.1).astype(np.float32)


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    difference = np.abs(ours - theirs)
    assert difference.max() < TOLERANCE
    assert np.quantile(difference, 0.99) < TYPICAL


@pytest.mark.parametrize("samples", [160, 399, 400, 1600, 16001, 48000])
@pytest.mark.parametrize("bins", [80, 128])
def test_equals_hugging_face_extractor(samples: int, bins: int) -> None:
    extractor_class = pytest.importorskip(
        "transformers", reason="the oracle is an extra"
    ).NemotronAsrStreamingFeatureExtractor
    audio = noise(samples)
    theirs = extractor_class(feature_size=bins)(audio, sampling_rate=16000, return_tensors="np")
    ours = log_mel(audio, bins)
    assert ours.shape == (samples // 160, bins)
    assert_close(ours, np.asarray(theirs["input_features"])[0, : len(ours)])


@pytest.mark.parametrize("clip", ["a0", "a1"])
def test_equals_nemo(golden: Path, clip: str) -> None:
    audio, _ = soundfile.read(golden / f"{clip}.wav", dtype="float32")
    theirs = load_file(golden / "multi.safetensors")
    frames = int(theirs[f"{clip}.features_len"][0])
    ours = log_mel(audio)
    assert len(ours) == frames
    assert_close(ours, theirs[f"{clip}.features"][0, :, :frames].T)


def test_rounding_is_no_worse_than_that_of_a_float64_transform() -> None:
    audio = noise(16000)
    emphasised = np.append(audio[:1], audio[1:] - np.float32(0.97) * audio[:-1]).astype(np.float64)
    padded = np.pad(emphasised, 256)
    window = np.pad(np.hanning(400), 56)
    frames = np.stack([padded[160 * t : 160 * t + 512] * window for t in range(100)])
    power = np.abs(np.fft.rfft(frames)) ** 2
    exact = np.log(power @ mel_filterbank(128).T.astype(np.float64) + 2.0**-24)
    assert np.abs(log_mel(audio) - exact).max() < 1e-4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 700), max_size=12), st.integers(0, 4000))
def test_any_packets_give_the_same_bits(cuts: list[int], samples: int) -> None:
    audio = noise(samples, seed=samples)
    front_end = IncrementalLogMel()
    parts, start = [], 0
    for cut in [*cuts, samples]:
        parts.append(front_end.feed(audio[start : start + cut]))
        start += cut
    parts.append(front_end.finish())
    assert np.array_equal(np.concatenate(parts), log_mel(audio))


def test_a_frame_comes_with_its_last_sample() -> None:
    front_end = IncrementalLogMel()
    audio = noise(2000)
    emitted = 0
    for position in range(2000):
        emitted += len(front_end.feed(audio[position : position + 1]))
        assert emitted == max(0, (position + 1 - 200) // 160 + 1 if position + 1 >= 200 else 0)


def test_silence_is_the_log_of_the_guard() -> None:
    assert np.allclose(log_mel(np.zeros(1600, np.float32)), np.log(2.0**-24))


def test_pre_emphasis_can_be_off() -> None:
    audio = noise(1600)
    assert not np.allclose(log_mel(audio, preemphasis=0.0), log_mel(audio))
