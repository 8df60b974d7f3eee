"""Reading through libsndfile: WAV, FLAC, Ogg Vorbis and Opus, MP3, AIFF, AU, CAF and more."""

from __future__ import annotations

from typing import BinaryIO

import soundfile

from nemostream.audio.containers import NamelessFile, mp3_has_index, read_wav_header, truncation
from nemostream.audio.pcm import Samples
from nemostream.errors import AudioError

READ_FRAMES = 4096  # small enough that an unread rest of an MP3 file is still visible in the file position
UNKNOWN_FRAMES = 2**62  # libsndfile gives the largest 64-bit number where the header has no length
MP3_SLACK_FRAMES = 3 * 1152  # an encoder's delay and padding
MP3_UNREAD_BYTES = 2048  # more than the largest MP3 frame and an ID3v1 tag
CONVERT = "convert it with `ffmpeg -i in -ac 1 out.wav`."
"""The remedy for what cannot be read."""
MAGIC = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b".snd", b"caff", b"riff")
"""Beginnings of files that libsndfile reads; if it refuses one of these, the file itself is broken."""


class _ForwardSoundFile(soundfile.SoundFile):  # type: ignore[misc]
    """A SoundFile that is only read forward.

    soundfile seeks after every read of a seekable file, which makes MP3 samples depend on the block size and
    fails for FLAC without a declared length.
    """

    def seekable(self) -> bool:
        return False


def _reason(error: soundfile.LibsndfileError) -> str:
    """Return libsndfile's own words."""
    return str(error.error_string).removeprefix("Error : ").rstrip(".")


class SoundFileReader:
    """Reads an open file with libsndfile; ``frames`` is None where the header does not say.

    Raises:
        AudioError: the file is of a known kind but broken, truncated, or without samples.
        soundfile.LibsndfileError: the file is of a kind that libsndfile does not know.
    """

    def __init__(self, file: BinaryIO, file_size: int, name: str) -> None:
        self.name = name
        self._file, self._file_size = file, file_size
        wav = read_wav_header(file, file_size)
        missing = truncation(file, file_size, wav)
        if missing is not None:
            raise self._truncated(missing)
        file.seek(0)
        magic = file.read(12)
        file.seek(0)
        try:
            self._sound = _ForwardSoundFile(NamelessFile(file, wav), "r")
        except soundfile.LibsndfileError as error:
            if magic[:4] in MAGIC and magic[8:] != b"AVI ":
                raise AudioError(
                    f"{name}: damaged, truncated or of an unsupported kind ({_reason(error)}); {CONVERT}"
                ) from error
            raise
        self.sample_rate: int = self._sound.samplerate
        self.channels: int = self._sound.channels
        self._is_mp3 = self._sound.format == "MP3"
        self._limit: int = self._sound.frames  # libsndfile reads no further, right or wrong
        estimated = self._is_mp3 and not self._mp3_index(file)
        self.frames: int | None = None if estimated or self._limit > UNKNOWN_FRAMES else self._limit
        self._count = 0

    @property
    def duration(self) -> float | None:
        """Seconds, or None where the header does not say."""
        return None if self.frames is None else self.frames / self.sample_rate

    def read(self) -> Samples:
        """Return the next float32 `[N, C]`, or N = 0 at the end.

        Raises:
            AudioError: the data is damaged, or ends before the declared number of frames.
        """
        try:
            block: Samples = self._sound.read(READ_FRAMES, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            what = f"decoding stopped after {self._count / self.sample_rate:.2f} s: {_reason(error)}"
            raise self._truncated(what) from error
        self._count += len(block)
        if len(block) == 0:
            self._check_end()
        return block

    def close(self) -> None:
        """Release libsndfile's state; the file itself stays open."""
        self._sound.close()

    def _mp3_index(self, file: BinaryIO) -> bool:
        position = file.tell()
        indexed = mp3_has_index(file)
        file.seek(position)
        return indexed

    def _check_end(self) -> None:
        slack = MP3_SLACK_FRAMES if self._is_mp3 else 0
        if self.frames is not None and self._count + slack < self.frames:
            declared, present = self.frames / self.sample_rate, self._count / self.sample_rate
            raise self._truncated(f"header says {declared:.2f} s, file has {present:.2f} s")
        stopped_early = self._is_mp3 and self.frames is None and self._count == self._limit
        if stopped_early and self._file_size - self._file.tell() > MP3_UNREAD_BYTES:
            raise AudioError(
                f"{self.name}: MP3 of variable bit rate without an index, of which only the first "
                f"{self._count / self.sample_rate:.2f} s could be read; "
                "write one with `ffmpeg -i in.mp3 -c copy out.mp3`."
            )

    def _truncated(self, what: str) -> AudioError:
        return AudioError(f"{self.name}: truncated: {what}; get a complete copy of the file.")
