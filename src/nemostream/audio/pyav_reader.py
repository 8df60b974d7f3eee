"""Reading through FFmpeg (PyAV): m4a, mp4, webm, mkv, wma, aac and whatever else libsndfile does not know."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from nemostream.audio.pcm import Samples
from nemostream.errors import AudioError

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

MAGIC = {  # (position, bytes): what begins so
    (4, b"ftyp"): "MP4/M4A",
    (0, b"\x1aE\xdf\xa3"): "WebM/Matroska",
    (0, b"0&\xb2u\x8ef\xcf\x11"): "WMA/ASF",
    (0, b"\xff\xf1"): "AAC",
    (0, b"\xff\xf9"): "AAC",
    (0, b"#!AMR"): "AMR",
    (0, b"FLV\x01"): "FLV",
    (8, b"AVI "): "AVI",
}
DURATION_SLACK = 0.5  # seconds by which a declared duration may exceed the samples: codec delay, rounding


def known_container(head: bytes) -> str | None:
    """Return the name of the container that begins with ``head``, if it is one that needs PyAV."""
    for (position, magic), name in MAGIC.items():
        if head[position : position + len(magic)] == magic:
            return name
    return None


class PyAvReader:
    """Reads the first audio track of an open file with FFmpeg; the number of frames is known at its end.

    Raises:
        AudioError: FFmpeg cannot read the file, or it has no audio track.
        ImportError: PyAV is not installed.
    """

    frames: int | None = None

    def __init__(self, file: BinaryIO, name: str) -> None:
        import av

        self.name = name
        file.seek(0)
        try:
            self._container: InputContainer = av.open(file, mode="r")
        except av.FFmpegError as error:
            raise AudioError(
                f"{name}: no audio could be recognised ({error.strerror}); the file is truncated, damaged or "
                "no audio: get a complete copy, or a WAV, FLAC, OGG, MP3, M4A or WebM file."
            ) from error
        if not self._container.streams.audio:
            self._container.close()
            raise AudioError(f"{name}: the file has no audio track; give one that has.")
        stream = self._container.streams.audio[0]
        if not stream.rate:
            self._container.close()
            raise AudioError(
                f"{name}: the audio track has no sample rate; the file is damaged, get another copy."
            )
        self.sample_rate: int = stream.rate
        self.channels: int = stream.codec_context.channels
        self.duration, self._exact = _declared_duration(self._container, stream)
        self._count = 0
        self._blocks = self._decode(stream)

    def read(self) -> Samples:
        """Return the next float32 `[N, C]`, or N = 0 at the end.

        Raises:
            AudioError: a packet is damaged, or the audio ends before the declared duration.
        """
        import av

        try:
            block = next(self._blocks, None)
        except (av.FFmpegError, ValueError) as error:
            raise self._truncated(f"decoding stopped after {self._seconds():.2f} s: {error}") from error
        if block is not None:
            self._count += len(block)
            return block
        if self._exact and self.duration is not None and self._seconds() + DURATION_SLACK < self.duration:
            raise self._truncated(f"header says {self.duration:.2f} s, file has {self._seconds():.2f} s")
        return np.zeros((0, self.channels), np.float32)

    def close(self) -> None:
        """Release FFmpeg's state; the file itself stays open."""
        self._blocks.close()
        self._container.close()

    def _decode(self, stream: AudioStream) -> Generator[Samples, None, None]:
        """Yield float32 `[N, C]`, N > 0, in the track's own rate and channels."""
        import av

        to_float = av.AudioResampler(format="fltp", rate=self.sample_rate)
        for decoded in self._container.decode(stream):
            for frame in to_float.resample(decoded):
                yield self._interleave(frame)
        for frame in to_float.resample(None):
            yield self._interleave(frame)

    def _interleave(self, frame: AudioFrame) -> Samples:
        planes = frame.to_ndarray()
        if len(planes) != self.channels:
            raise AudioError(
                f"{self.name}: the track declares {self.channels} channels and has {len(planes)}; "
                "convert it with `ffmpeg -i in -ac 1 out.wav`."
            )
        return np.ascontiguousarray(planes.T, dtype=np.float32)

    def _seconds(self) -> float:
        return self._count / self.sample_rate

    def _truncated(self, what: str) -> AudioError:
        return AudioError(f"{self.name}: truncated or damaged: {what}; get a complete copy of the file.")


def _declared_duration(container: InputContainer, stream: AudioStream) -> tuple[float | None, bool]:
    """Return the track's duration in seconds, and whether it was declared rather than estimated by FFmpeg."""
    kind = container.format.name
    declared = "mp4" in kind or "matroska" in kind
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base), declared
    tag = stream.metadata.get("DURATION")  # Matroska and WebM: one per track
    if tag is not None:
        hours, minutes, seconds = tag.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds), declared
    if container.duration is None:
        return None, False
    only_audio = len(container.streams) == len(container.streams.audio)
    return container.duration / 1_000_000, declared and only_audio  # in microseconds
