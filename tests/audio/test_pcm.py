"""Raw PCM: the samples depend on the bytes alone, and every array becomes float32 in units of full scale."""

import io
import itertools

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from nemostream.audio import ENCODINGS, PcmDecoder, as_float32
from nemostream.errors import AudioError, SessionError


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
@settings(max_examples=60, deadline=None)
@given(data=st.data(), channels=st.integers(1, 3), cuts=st.lists(st.integers(0, 400), max_size=30))
def test_any_split_of_the_bytes_gives_the_same_samples(encoding, data, channels, cuts):
    if encoding == "f32le":
        values = data.draw(st.lists(st.floats(-1, 1, width=32), max_size=60))
        raw = np.array(values, "<f4").tobytes() + data.draw(st.binary(max_size=3))
    else:
        raw = data.draw(st.binary(max_size=240))
    whole = PcmDecoder(encoding, channels)
    expected = whole.decode(raw)
    decoder = PcmDecoder(encoding, channels)
    got = [decoder.decode(piece) for piece in pieces(raw, cuts)]
    frame = ENCODINGS[encoding] * channels
    assert expected.shape == (len(raw) // frame, channels)
    assert expected.dtype == np.float32
    np.testing.assert_array_equal(np.concatenate(got), expected)
    assert decoder.pending_bytes == len(raw) % frame


def test_interleaved_stereo_keeps_its_channels_when_packets_end_inside_a_sample():
    left, right = np.arange(50, dtype="<i2"), -np.arange(50, dtype="<i2")
    raw = np.stack([left, right], axis=1).tobytes()
    decoder = PcmDecoder("s16le", channels=2)
    got = np.concatenate([decoder.decode(raw[i : i + 3]) for i in range(0, len(raw), 3)])
    np.testing.assert_array_equal(got[:, 0], left / np.float32(32768))
    np.testing.assert_array_equal(got[:, 1], right / np.float32(32768))


@pytest.mark.parametrize(("encoding", "subtype"), [("mulaw", "ULAW"), ("alaw", "ALAW")])
def test_g711_values_equal_those_of_libsndfile_for_all_codes(encoding, subtype):
    codes = bytes(range(256))
    expected, _ = soundfile.read(
        io.BytesIO(codes), dtype="float32", samplerate=8000, channels=1, format="RAW", subtype=subtype
    )
    np.testing.assert_array_equal(PcmDecoder(encoding).decode(codes)[:, 0], expected)


def test_16_bit_full_scale_is_one():
    got = PcmDecoder("s16le").decode(np.array([-32768, 0, 32767], "<i2").tobytes())[:, 0]
    np.testing.assert_array_equal(got, np.array([-1, 0, 32767 / 32768], np.float32))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_packets_may_be_any_bytes_type(kind):
    assert PcmDecoder("pcm16").decode(kind(b"\0\x40")).tolist() == [[0.5]]


@pytest.mark.parametrize(
    ("alias", "encoding"),
    [
        ("int16", "s16le"),
        ("PCM16", "s16le"),
        ("linear16", "s16le"),
        ("float32", "f32le"),
        ("ulaw", "mulaw"),
        ("pcmu", "mulaw"),
        ("pcma", "alaw"),
    ],
)
def test_aliases_name_the_same_encodings(alias, encoding):
    assert PcmDecoder(alias).encoding == encoding


def test_an_unknown_encoding_is_refused_with_the_valid_ones():
    with pytest.raises(AudioError, match=r"'s24le'.*s16le.*f32le.*mulaw.*alaw"):
        PcmDecoder("s24le")


@pytest.mark.parametrize("channels", [0, -1, 65, True, 1.0])
def test_an_impossible_number_of_channels_is_refused(channels):
    with pytest.raises(AudioError, match="1 to 64"):
        PcmDecoder("s16le", channels)


def test_finish_drops_an_incomplete_sample_and_ends_the_stream():
    decoder = PcmDecoder("s16le", channels=2)
    assert len(decoder.decode(b"\0\0\0\0\1\1\1")) == 1
    assert decoder.pending_bytes == 3
    assert decoder.finish() == 3
    assert decoder.pending_bytes == 0
    with pytest.raises(SessionError, match="finish"):
        decoder.decode(b"\0\0")


def test_a_float_stream_that_is_not_finite_is_refused_at_its_sample_of_the_whole_stream():
    decoder = PcmDecoder("f32le")
    decoder.decode(np.zeros(100, "<f4").tobytes())
    bad = np.zeros(50, "<f4")
    bad[23] = np.nan
    with pytest.raises(AudioError, match="NaN at sample 123;"):
        decoder.decode(bad.tobytes())
    assert decoder.decode(np.ones(1, "<f4").tobytes()).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([-32768, 16384], np.int16), [-1, 0.5]),
        (np.array([-32768, 16384], ">i2"), [-1, 0.5]),
        (np.array([-(2**31), 2**30], np.int32), [-1, 0.5]),
        (np.array([0, 128, 192], np.uint8), [-1, 0, 0.5]),
        (np.array([-1, 0.25, 1.5], np.float32), [-1, 0.25, 1.5]),
        (np.array([-1, 0.25], np.float64), [-1, 0.25]),
        (np.array([[1, -1]], np.float64), [[1, -1]]),
        (np.zeros(0, np.int16), []),
    ],
)
def test_arrays_become_float32_of_full_scale_one(array, expected):
    got = as_float32(array)
    assert got.dtype == np.float32
    assert got.shape == array.shape
    assert got.tolist() == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
def test_the_first_sample_that_is_not_finite_is_named(dtype, value, word):
    array = np.zeros(300, dtype)
    array[[123, 200]] = value
    with pytest.raises(AudioError, match=f"{word}.* at sample 123;"):
        as_float32(array)


def test_the_channel_that_is_not_finite_is_named():
    array = np.zeros((300, 2), np.float32)
    array[123, 1] = np.nan
    with pytest.raises(AudioError, match="NaN at sample 123 of channel 1;"):
        as_float32(array)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(()), "must be"),
        (np.zeros((1, 2, 3)), r"\[1, 2, 3\].*must be"),
        (np.zeros((2, 16000)), "transpose"),
        (np.zeros((5, 0)), "0 channels"),
        (np.zeros(3, np.int64), "int64.*int16"),
        (np.array(["a"]), "dtype"),
        (np.array([0.0, 12000.0]), "12000 at sample 1;"),
        (np.array([1e300]), r"1e\+300 at sample 0"),
    ],
)
def test_arrays_that_are_no_audio_are_refused(array, message):
    with pytest.raises(AudioError, match=message):
        as_float32(array)
