"""Audio files in bounded memory: open, read in blocks, choose channels, resample.

libsndfile reads what it knows; FFmpeg, through PyAV, reads the rest. Whatever is wrong with a file is an
`AudioError` that names the file: nothing is skipped, shortened or replaced by silence.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

import numpy as np
import soundfile

from nemostream.audio.channels import Channels, check_channels, select_channels
from nemostream.audio.pcm import Samples, check_samples
from nemostream.audio.pyav_reader import PyAvReader, known_container
from nemostream.audio.resample import Resampler
from nemostream.audio.soundfile_reader import SoundFileReader
from nemostream.errors import AudioError, SessionError

AudioSource = str | Path | BinaryIO
EXPECTED = "give a WAV, FLAC, OGG, MP3, AIFF, AU, CAF, M4A or WebM file"


class _Reader(Protocol):
    sample_rate: int
    channels: int
    frames: int | None

    @property
    def duration(self) -> float | None: ...
    def read(self) -> Samples: ...
    def close(self) -> None: ...


class AudioFile:
    """One audio file, open for a single pass from its beginning; use it in a ``with`` statement.

    Args:
        source: a path, or a seekable binary file, which is read from position 0 and stays open.
        name: what error messages call it; None: the path, or the file object's own name.

    Attributes:
        name: as error messages give it.
        sample_rate: Hz.
        channels: how many.
        frames: samples per channel, or None where the header does not say.
        duration: seconds, or None where the header does not say.

    Raises:
        AudioError: the file is missing, unreadable, empty, truncated, not audio, or needs PyAV.
    """

    def __init__(self, source: AudioSource, name: str | None = None) -> None:
        self._owned: BinaryIO | None = None
        if isinstance(source, str | Path):
            self.name = name or str(source)
            file = self._owned = _open(Path(source))
        else:
            file = source
            self.name = name or str(getattr(source, "name", None) or "<stream>")
        try:
            self._reader = _reader(file, self.name)
        except BaseException:
            self._close_owned()
            raise
        self.sample_rate = self._reader.sample_rate
        self.channels = self._reader.channels
        self.frames = self._reader.frames
        self.duration = self._reader.duration
        self._started = False
        if self.frames == 0:
            self.close()
            raise _no_samples(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if it was opened here."""
        self._reader.close()
        self._close_owned()

    def blocks(self, frames_per_block: int) -> Iterator[Samples]:
        """Yield the audio as float32 `[frames_per_block, C]`; the last block may be shorter, none is empty.

        Raises:
            AudioError: the file turns out truncated or damaged, has no samples, or a sample is not finite or
                far above 1.
            SessionError: the blocks were asked for before.
            ValueError: ``frames_per_block`` is below 1.
        """
        if frames_per_block < 1:
            raise ValueError(f"frames_per_block is {frames_per_block}; it must be at least 1")
        if self._started:
            raise SessionError(f"{self.name}: an AudioFile is read only once; open the file again.")
        self._started = True
        return self._blocks(frames_per_block)

    def _blocks(self, frames_per_block: int) -> Iterator[Samples]:
        waiting: list[Samples] = []
        held = total = 0
        while len(part := self._reader.read()):
            try:
                check_samples(part, total)
            except AudioError as error:
                raise AudioError(f"{self.name}: {error}") from None
            total += len(part)
            waiting.append(part)
            held += len(part)
            if held >= frames_per_block:
                joined = np.concatenate(waiting)
                whole = held - held % frames_per_block
                for start in range(0, whole, frames_per_block):
                    yield joined[start : start + frames_per_block]
                waiting, held = [joined[whole:]], held - whole
        if total == 0:
            raise _no_samples(self.name)
        if held:
            yield np.concatenate(waiting)

    def _close_owned(self) -> None:
        if self._owned is not None:
            self._owned.close()


def stream_audio(
    source: AudioSource, *, channels: Channels = "mix", target_rate: int = 16_000, block_seconds: float = 10.0
) -> Iterator[Samples]:
    """Yield a file as mono float32 `[M]` at ``target_rate`` Hz, about ``block_seconds`` at a time.

    The joined blocks are the same for every ``block_seconds``. Nothing is opened before the first block.

    Raises:
        AudioError: as in `AudioFile`, or there is no such channel, or a sample rate cannot be resampled.
        ValueError: ``block_seconds`` is not a positive number.
    """
    if not 0 < block_seconds < float("inf"):
        raise ValueError(f"block_seconds is {block_seconds}; it must be a positive number of seconds")
    with AudioFile(source) as audio:
        try:
            check_channels(channels, audio.channels)
            resampler = Resampler(audio.sample_rate, target_rate)
        except AudioError as error:
            raise AudioError(f"{audio.name}: {error}") from None
        for block in audio.blocks(max(round(block_seconds * audio.sample_rate), 1)):
            resampled = resampler.feed(select_channels(block, channels))
            if len(resampled):
                yield resampled
        tail = resampler.finish()
        if len(tail):
            yield tail


def load_audio(source: AudioSource, *, channels: Channels = "mix", target_rate: int = 16_000) -> Samples:
    """Return a whole file as mono float32 `[M]` at ``target_rate`` Hz; raises as `stream_audio` does."""
    parts = list(stream_audio(source, channels=channels, target_rate=target_rate))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _open(path: Path) -> BinaryIO:
    """Open a regular file for reading, or say why that is impossible."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise AudioError(f"{path}: this is a directory; give one audio file.")
        if not stat.S_ISREG(mode):
            raise AudioError(f"{path}: this is not a regular file; save the audio to a file first.")
        return path.open("rb")
    except FileNotFoundError:
        raise AudioError(f"{path}: there is no such file; check the path.") from None
    except PermissionError:
        raise AudioError(f"{path}: the file may not be read; change its permissions.") from None
    except (OSError, ValueError) as error:
        raise AudioError(f"{path}: the file cannot be opened ({error}); check the path.") from error


def _reader(file: BinaryIO, name: str) -> _Reader:
    """Choose what can read the file, by its contents and never by its name."""
    if not file.seekable():
        raise AudioError(
            f"{name}: this stream cannot be rewound; save it to a file, or decode it as raw PCM."
        )
    file_size = file.seek(0, 2)
    if file_size == 0:
        raise AudioError(f"{name}: the file is empty (0 bytes); {EXPECTED}.")
    file.seek(0)
    head = file.read(512)
    try:
        return SoundFileReader(file, file_size, name)
    except soundfile.LibsndfileError:
        text = _as_text(head)
        if text is not None:
            raise AudioError(
                f"{name}: this is text, not audio (it begins with {text!r}); {EXPECTED}."
            ) from None
    try:
        return PyAvReader(file, name)
    except ImportError:
        kind = known_container(head)
        what = f"{kind} audio needs PyAV" if kind else "the format was not recognised, and PyAV may know it"
        raise AudioError(f"{name}: {what}; run `pip install 'nemostream[av]'`, or {EXPECTED}.") from None


def _as_text(head: bytes) -> str | None:
    """Return the beginning of readable text, such as an error page or a Git LFS pointer, else None."""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character takes up to 4 bytes; the last one may be cut
            return None
        text = head[: error.start].decode("utf-8")
    printable = all(character.isprintable() or character.isspace() for character in text)
    return text[:40] if printable and text else None


def _no_samples(name: str) -> AudioError:
    return AudioError(f"{name}: the file has a header but no samples; record it again, or give another file.")
