"""What the headers of audio files declare, so that a file that was cut short is noticed.

libsndfile silently reads what is left of a truncated WAV, AIFF, AU, W64 or Ogg file. These few header
fields tell whether bytes are missing. Sources: Microsoft's RIFF specification, EBU Tech 3306 (RF64), Apple's
AIFF 1.3, the Sun AU header, Sony's Wave64, and RFC 3533 (Ogg).
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import BinaryIO

STREAMED_SIZES = frozenset({0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF})
"""Sizes that programs write when they do not know yet (ffmpeg, sox, arecord): read to the end of the file."""
UNKNOWN_SIZE = b"\xff\xff\xff\xff"
W64_MAGIC = b"riff\x2e\x91\xcf\x11"
MAX_OGG_PAGE = 27 + 255 + 255 * 255  # header, segment table, segments
OGG_END_OF_STREAM = 4  # bit of the page header's type


@dataclass(frozen=True)
class WavHeader:
    """The size fields of a WAV file; all positions and sizes in bytes."""

    bytes_per_second: int
    data_start: int
    data_size: int
    """As declared; 64 bits for RF64."""
    size_positions: tuple[int, int]
    """Where the 32-bit sizes of the file and of the data stand."""
    streamed: bool
    """The size was never filled in, so the samples go on to the end of the file."""


def read_wav_header(file: BinaryIO, file_size: int) -> WavHeader | None:
    """Return the size fields of a RIFF, RIFX or RF64 WAV file, or None if it has no such data."""
    file.seek(0)
    start = file.read(12)
    if start[:4] not in (b"RIFF", b"RIFX", b"RF64") or start[8:] != b"WAVE":
        return None
    order = ">" if start[:4] == b"RIFX" else "<"
    (riff_size,) = struct.unpack(order + "I", start[4:8])
    position, bytes_per_second, long_size = 12, 0, None
    while len(head := file.read(8)) == 8:
        name, (size,) = head[:4], struct.unpack(order + "I", head[4:])
        position += 8
        if name == b"data":
            if long_size is not None:
                return WavHeader(bytes_per_second, position, long_size, (4, position - 4), False)
            follows = file_size > position
            unfilled = riff_size in STREAMED_SIZES or riff_size + 8 <= position
            streamed = size in STREAMED_SIZES and follows and (size > 0 or unfilled)
            return WavHeader(bytes_per_second, position, size, (4, position - 4), streamed)
        payload = file.read(min(size, 64))
        if name == b"fmt " and len(payload) >= 12:
            (bytes_per_second,) = struct.unpack(order + "I", payload[8:12])
        if name == b"ds64" and len(payload) >= 16:
            (long_size,) = struct.unpack("<Q", payload[8:16])
        position += size + size % 2
        file.seek(position)
    return None


def truncation(file: BinaryIO, file_size: int, wav: WavHeader | None) -> str | None:
    """Return what is missing from a truncated file, such as ``header says 3 s, file has 2 s``; None if whole.

    FLAC, MP3 and CAF need no look here: their decoder notices, or the number of samples read does.
    """
    if wav is not None:
        return (
            None
            if wav.streamed
            else _shortage(wav.data_size, file_size - wav.data_start, wav.bytes_per_second)
        )
    file.seek(0)
    head = file.read(24)
    if len(head) < 24:
        return None
    if head[:4] == b"FORM":
        return _shortage(struct.unpack(">I", head[4:8])[0], file_size - 8)
    if head[:4] == b".snd" and head[8:12] != UNKNOWN_SIZE:
        data_start, size = struct.unpack(">II", head[4:12])
        return _shortage(size, file_size - data_start)
    if head[:8] == W64_MAGIC:
        return _shortage(struct.unpack("<Q", head[16:24])[0], file_size)
    if head[:4] == b"OggS":
        return _ogg_shortage(file, file_size)
    return None


def _shortage(declared: int, present: int, bytes_per_second: int = 0) -> str | None:
    """Compare two numbers of bytes, and tell the difference in seconds where they can be known."""
    if declared <= present:
        return None
    present = max(present, 0)
    if bytes_per_second:
        declared_s, present_s = declared / bytes_per_second, present / bytes_per_second
        if f"{declared_s:.2f}" != f"{present_s:.2f}":
            return f"header says {declared_s:.2f} s, file has {present_s:.2f} s"
    return f"header says {declared} bytes, file has {present} bytes"


def _ogg_shortage(file: BinaryIO, file_size: int) -> str | None:
    """Look at the last page of an Ogg file: it must be complete and carry the end-of-stream mark."""
    file.seek(max(file_size - 2 * MAX_OGG_PAGE, 0))
    tail = file.read()
    start = tail.rfind(b"OggS\0")
    page = tail[start:]
    if start < 0 or len(page) < 27 or len(page) < 27 + page[26]:
        return "its last Ogg page is incomplete"
    if len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]]):
        return "its last Ogg page is incomplete"
    return None if page[5] & OGG_END_OF_STREAM else "its last Ogg page is not marked as the end"


def mp3_has_index(file: BinaryIO) -> bool:
    """Say whether an MP3 file begins with a Xing, Info or VBRI frame, which tells how long the audio is."""
    file.seek(0)
    head = file.read(10)
    start = 0
    if head[:3] == b"ID3" and len(head) == 10:  # its size has 7 bits per byte
        start = 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])
    file.seek(start)
    first_frame = file.read(2048)  # the largest frame has 1441 bytes
    return any(mark in first_frame for mark in (b"Xing", b"Info", b"VBRI"))


class NamelessFile:
    """A file for libsndfile, which is not to guess from its name (``.raw``).

    The size fields of a streamed WAV read as "unknown", so that it is read to the end of the file.
    """

    def __init__(self, file: BinaryIO, wav: WavHeader | None) -> None:
        self._file = file
        self._positions = wav.size_positions if wav is not None and wav.streamed else ()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, as in any file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position, as in any file."""
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of the file, with the size fields replaced."""
        start = self._file.tell()
        data = bytearray(self._file.read(size))
        for position in self._positions:
            first, last = max(position - start, 0), min(position + 4 - start, len(data))
            if first < last:
                data[first:last] = UNKNOWN_SIZE[: last - first]
        return bytes(data)
