"""What is wrong with a file is said in one message that names the file and the remedy; nothing is skipped."""

import builtins
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nemostream.audio import AudioFile, load_audio
from nemostream.errors import AudioError

from .sounds import RATE, encode, sound, wav_with_sizes


def refused(path: Path, *words: str) -> str:
    """Load a file, which must fail with an AudioError that names it; check that ``words`` occur in order."""
    with pytest.raises(AudioError) as caught:
        load_audio(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.endswith(".")
    position = 0
    for word in words:
        assert word in message[position:], message
        position = message.index(word, position)
    return message


def test_a_missing_file(tmp_path):
    refused(tmp_path / "a.wav", "no such file", "check the path")


def test_a_path_through_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    refused(tmp_path / "a" / "b.wav", "cannot be opened", "check the path")


def test_a_directory(tmp_path):
    refused(tmp_path, "directory", "give one audio file")


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file", "save")


def test_a_stream_that_cannot_be_rewound():
    read_end, write_end = os.pipe()
    os.close(write_end)
    with (
        os.fdopen(read_end, "rb") as pipe,
        pytest.raises(AudioError, match="cannot be rewound; save it to a file"),
    ):
        load_audio(pipe)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a.wav"
    soundfile.write(path, sound(), RATE)

    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    refused(path, "may not be read", "permissions")


def test_an_empty_file(tmp_path):
    (tmp_path / "a.wav").touch()
    refused(tmp_path / "a.wav", "empty (0 bytes)", "give a WAV")


@pytest.mark.parametrize(
    "text", ["Not audio at all.\n" * 50, "version https://git-lfs.github.com/spec/v1\n", "é" * 400]
)
@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.raw", "a.m4a"])
def test_text_by_any_name(tmp_path, text, name):
    (tmp_path / name).write_text(text, encoding="utf-8")
    refused(tmp_path / name, "text, not audio", repr(text[:40]), "give a WAV")


@pytest.mark.parametrize("name", ["a.wav", "a.mp3"])
def test_random_bytes(tmp_path, name):
    (tmp_path / name).write_bytes(np.random.default_rng(0).bytes(5000))
    refused(tmp_path / name, "no audio could be recognised", "get a complete copy")


@pytest.mark.parametrize("kind", ["WAV", "AIFF", "AU"])
def test_a_header_without_samples(tmp_path, kind):
    path = tmp_path / "a"
    soundfile.write(path, np.zeros(0), RATE, format=kind)
    refused(path, "no samples", "record it again")


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite")])
def test_samples_that_are_not_finite(tmp_path, value, word):
    signal = sound()
    signal[50_123] = value
    soundfile.write(tmp_path / "a.wav", signal, RATE, subtype="FLOAT")
    refused(tmp_path / "a.wav", word, "sample 50123;", "must be finite")


def truncate(path: Path, part: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    return path


@pytest.mark.parametrize("kind", ["WAV", "RF64"])
def test_a_truncated_wav_says_how_much_is_there(tmp_path, kind):
    path = tmp_path / "a.wav"
    soundfile.write(path, sound(2), RATE, format=kind, subtype="PCM_16")
    refused(truncate(path, 0.5), "truncated: header says 2.00 s, file has 1.00 s", "get a complete copy")


def test_a_wav_that_lacks_one_byte_is_truncated(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, sound(), RATE, subtype="PCM_16")
    path.write_bytes(path.read_bytes()[:-1])
    refused(path, f"truncated: header says {len(sound()) * 2} bytes, file has {len(sound()) * 2 - 1} bytes")


def test_a_wav_cut_in_its_header(tmp_path):
    data, _ = wav_with_sizes(0, 0)
    (tmp_path / "a.wav").write_bytes(data[:30])
    refused(tmp_path / "a.wav", "damaged, truncated", "data", "convert it")


@pytest.mark.parametrize("kind", ["AIFF", "AU", "W64", "OGG", "MP3", "FLAC"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_truncated_file_of_any_format(tmp_path, kind, part):
    path = tmp_path / "a"
    soundfile.write(path, sound(5), RATE, format=kind)
    refused(truncate(path, part), "truncated: ", "get a complete copy")


@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_truncated_opus_file(tmp_path, part):
    path = tmp_path / "a.opus"
    soundfile.write(path, sound(5), RATE, format="OGG", subtype="OPUS")
    refused(truncate(path, part), "truncated: its last Ogg page", "get a complete copy")


def test_an_ogg_file_cut_between_two_pages(tmp_path):
    path = tmp_path / "a.ogg"
    soundfile.write(path, sound(30), RATE)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"OggS")])
    refused(path, "truncated: its last Ogg page is not marked as the end", "get a complete copy")


def test_a_truncated_caf_is_damaged(tmp_path):
    path = tmp_path / "a.caf"
    soundfile.write(path, sound(), RATE)
    refused(truncate(path, 0.5), "damaged, truncated", "convert it")


@pytest.mark.parametrize(
    ("name", "codec"), [("a.webm", "libopus"), ("a.mkv", "aac"), ("a.m4a", "aac"), ("a.mp4", "aac")]
)
@pytest.mark.parametrize("faststart", [False, True])
def test_a_truncated_file_of_ffmpegs_formats(tmp_path, name, codec, faststart):
    path = tmp_path / name
    encode(path, codec, sound(5), options={"movflags": "faststart"} if faststart else {})
    refused(truncate(path, 0.6), "truncated", "complete copy")


def test_a_variable_rate_mp3_without_an_index_is_not_cut_short_silently(tmp_path):
    path = tmp_path / "a.mp3"
    loud = np.random.default_rng(0).standard_normal(3 * RATE).astype(np.float32) * 0.1
    options = {"q": "4", "flags": "+qscale"}
    encode(path, "libmp3lame", loud, options={"write_xing": "0"}, codec_options=options)
    refused(path, "variable bit rate without an index", "ffmpeg")


def test_a_video_without_sound(tmp_path):
    import av

    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    refused(path, "no audio track")


@pytest.mark.parametrize(
    ("name", "codec", "kind"), [("a.m4a", "aac", "MP4/M4A"), ("a.webm", "libopus", "WebM/Matroska")]
)
def test_without_pyav_its_formats_say_what_to_install(tmp_path, monkeypatch, name, codec, kind):
    encode(tmp_path / name, codec, sound())
    real_import = builtins.__import__

    def without_av(module, *args, **kwargs):
        if module == "av":
            raise ModuleNotFoundError("No module named 'av'", name="av")
        return real_import(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_av)
    refused(tmp_path / name, f"{kind} audio needs PyAV", "pip install 'nemostream[av]'")


def test_a_channel_that_is_not_there(tmp_path):
    soundfile.write(tmp_path / "a.wav", sound(), RATE)
    with pytest.raises(AudioError, match=r"a\.wav: Channel 1 was asked for, but there is 1 channel;.*'mix'"):
        load_audio(tmp_path / "a.wav", channels=1)


def test_a_sample_rate_that_cannot_be_resampled(tmp_path):
    soundfile.write(tmp_path / "a.wav", sound(), 1000)
    refused(tmp_path / "a.wav", "source sample rate is 1000", "4000 to 384000 Hz")


def test_a_file_that_was_refused_is_closed(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", np.zeros(0), RATE)
    opened = []
    real_open = Path.open

    def remember(*args, **kwargs):
        opened.append(real_open(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(Path, "open", remember)
    with pytest.raises(AudioError, match="no samples"):
        AudioFile(tmp_path / "a.wav")
    assert [file.closed for file in opened] == [True]
