"""Audio files: every format gives the same sound in blocks of any size, in bounded memory."""

import io

import numpy as np
import pytest
import soundfile

from nemostream.audio import AudioFile, load_audio, stream_audio
from nemostream.errors import SessionError

from .sounds import RATE, encode, sound, wav_with_sizes

LOSSLESS = ["WAV", "FLAC", "AIFF", "AU", "CAF", "RF64", "W64"]


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_formats_give_their_samples(tmp_path, kind):
    path = tmp_path / f"a.{kind.lower()}"
    stereo = np.stack([sound(), -sound() / 2], axis=1)
    soundfile.write(path, stereo, RATE, format=kind, subtype="PCM_16")
    with AudioFile(path) as audio:
        assert (audio.sample_rate, audio.channels, audio.frames) == (RATE, 2, len(stereo))
        assert audio.duration == len(stereo) / RATE
        got = np.concatenate(list(audio.blocks(1000)))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, stereo, atol=1 / 32768)


@pytest.mark.parametrize(("kind", "subtype"), [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None)])
def test_lossy_formats_give_the_sound_at_its_time(tmp_path, kind, subtype):
    path = tmp_path / "a.bin"  # the contents decide, not the name
    soundfile.write(path, sound(), RATE, format=kind, subtype=subtype)
    got = load_audio(path, target_rate=RATE)
    assert len(got) == len(sound())
    end = -RATE // 50  # Opus fades out within its last frame
    np.testing.assert_allclose(got[:end], sound()[:end], atol=0.06)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.m4a", "aac"),
        ("a.mp4", "aac"),
        ("a.webm", "libopus"),
        ("a.mkv", "pcm_s16le"),
        ("a.wma", "wmav2"),
        ("a.aac", "aac"),
    ],
)
def test_formats_beyond_libsndfile_give_the_sound_through_pyav(tmp_path, name, codec):
    encode(tmp_path / name, codec, sound())
    got = load_audio(tmp_path / name, target_rate=RATE)
    assert abs(len(got) - len(sound())) <= 4096  # encoders pad by a frame or two
    spectrum = np.abs(np.fft.rfft(got[: RATE // 2 * 2]))
    assert abs(np.argmax(spectrum) * RATE / (RATE // 2 * 2) - 440) <= 1
    assert abs(np.sqrt(np.mean(got**2)) / np.sqrt(np.mean(sound() ** 2)) - 1) < 0.05


def test_pyav_gives_the_same_samples_as_libsndfile(tmp_path):
    encode(tmp_path / "a.mkv", "pcm_s16le", sound())
    encode(tmp_path / "a.wav", "pcm_s16le", sound())
    np.testing.assert_array_equal(load_audio(tmp_path / "a.mkv"), load_audio(tmp_path / "a.wav"))


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "m4a"])
def test_the_block_size_changes_nothing(tmp_path, kind):
    path = tmp_path / f"a.{kind.lower()}"
    if kind == "m4a":
        encode(path, "aac", sound(), rate=RATE)
    else:
        soundfile.write(path, sound(rate=44100), 44100, format=kind)
    whole = np.concatenate(list(stream_audio(path, block_seconds=1000)))
    for seconds in (0.001, 0.02, 0.37):
        blocks = list(stream_audio(path, block_seconds=seconds))
        np.testing.assert_array_equal(np.concatenate(blocks), whole)
        assert len(blocks) > 3
    np.testing.assert_array_equal(load_audio(path), whole)


@pytest.mark.parametrize("kind", ["WAV", "MP3"])
@pytest.mark.parametrize("size", [1, 777, 4096, 10**6])
def test_blocks_have_the_size_asked_for(tmp_path, kind, size):
    path = tmp_path / "a"
    soundfile.write(path, sound(0.2), RATE, format=kind)
    with AudioFile(path) as audio:
        sizes = [len(block) for block in audio.blocks(size)]
    assert sum(sizes) == len(sound(0.2))
    assert set(sizes[:-1]) <= {size}
    assert 0 < sizes[-1] <= size


def test_only_what_a_block_needs_is_read(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(20 * RATE, np.float32), RATE)
    with path.open("rb") as file:
        next(stream_audio(file, block_seconds=0.1))
        assert file.tell() < 0.2 * RATE * 2


def test_resampling_joins_blocks_without_a_seam_and_keeps_the_duration(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, sound(rate=44100), 44100, subtype="FLOAT")
    got = load_audio(path)
    expected = sound(rate=16000)
    assert len(got) == len(expected)
    np.testing.assert_allclose(got[300:-300], expected[300:-300], atol=1e-4)


def test_channels_are_mixed_or_selected(tmp_path):
    path = tmp_path / "a.wav"
    left, right = sound(rate=16000), np.zeros_like(sound(rate=16000))
    soundfile.write(path, np.stack([left, right], axis=1), 16000, subtype="FLOAT")
    np.testing.assert_array_equal(load_audio(path), left / 2)
    np.testing.assert_array_equal(load_audio(path, channels=0), left)
    np.testing.assert_array_equal(load_audio(path, channels=1), right)


@pytest.mark.parametrize("codec", ["WAV", "m4a"])
def test_an_open_file_is_read_from_its_beginning_and_stays_open(tmp_path, codec):
    path = tmp_path / "a"
    if codec == "m4a":
        encode(path, "aac", sound(), format="mp4")
    else:
        soundfile.write(path, sound(), RATE, format=codec)
    memory = io.BytesIO(path.read_bytes())
    memory.seek(11)
    np.testing.assert_array_equal(load_audio(memory), load_audio(str(path)))
    assert not memory.closed


@pytest.mark.parametrize(
    ("riff_size", "data_size"),
    [(0xFFFFFFFF, 0xFFFFFFFF), (0, 0), (36, 0), (0x7FFFF024, 0x7FFFF000), (0x80000024, 0x80000000)],
)
def test_a_streamed_wav_whose_size_was_never_filled_in_is_read_to_its_end(riff_size, data_size):
    data, expected = wav_with_sizes(riff_size, data_size)
    np.testing.assert_array_equal(load_audio(io.BytesIO(data)), expected)


def test_chunks_around_the_samples_are_not_heard(tmp_path):
    data, expected = wav_with_sizes(0, len(sound()) * 2, tail=b"LIST\x06\0\0\0abcdef")
    junk = b"JUNK\x05\0\0\0abcde\0"  # chunks are padded to an even size
    np.testing.assert_array_equal(load_audio(io.BytesIO(data[:12] + junk + data[12:])), expected)


def test_flac_without_a_declared_length_is_read_to_its_end(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, sound(), RATE)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0  # STREAMINFO: the 36-bit number of samples
    data[22:26] = bytes(4)
    with AudioFile(io.BytesIO(bytes(data))) as audio:
        assert (audio.frames, audio.duration) == (None, None)
        assert sum(len(block) for block in audio.blocks(5000)) == len(sound())


def test_constant_rate_mp3_without_an_index_is_read_to_its_end(tmp_path):
    path = tmp_path / "a.mp3"
    encode(path, "libmp3lame", sound(5), options={"write_xing": "0"})
    assert (
        abs(len(load_audio(path, target_rate=RATE)) - 5 * RATE) < 3000
    )  # no index: the codec's padding stays


def test_mp3_behind_a_large_tag_is_read(tmp_path):
    path = tmp_path / "a.mp3"
    soundfile.write(path, sound(), RATE)
    tag = b"ID3\x03\0\0" + bytes([0, 2, 0, 0]) + bytes(2 << 14)
    np.testing.assert_array_equal(load_audio(io.BytesIO(tag + path.read_bytes())), load_audio(path))


def test_a_file_is_read_only_once(tmp_path):
    soundfile.write(tmp_path / "a.wav", sound(), RATE)
    with AudioFile(tmp_path / "a.wav") as audio:
        list(audio.blocks(100))
        with pytest.raises(SessionError, match="once"):
            audio.blocks(100)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_block_must_have_a_length(tmp_path, seconds):
    with pytest.raises(ValueError, match="block_seconds"):
        next(stream_audio(tmp_path / "a.wav", block_seconds=seconds))
