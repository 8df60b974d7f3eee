"""Raw PCM bytes and numpy arrays to float32 samples.

A stream of bytes carries no header, so its packets may end anywhere: in the middle of a sample, or between
the channels of one moment. `PcmDecoder` keeps the incomplete bytes for the next packet, so that the samples
depend on the bytes alone and never on where they were cut. G.711 follows ITU-T Recommendation G.711 (11/88).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nemostream.errors import AudioError, SessionError

Samples = NDArray[np.float32]

ENCODINGS: dict[str, int] = {"s16le": 2, "f32le": 4, "mulaw": 1, "alaw": 1}
"""Bytes per sample of every encoding that `PcmDecoder` reads."""

_ALIASES = {
    "int16": "s16le",
    "pcm16": "s16le",
    "linear16": "s16le",
    "float32": "f32le",
    "ulaw": "mulaw",
    "pcmu": "mulaw",
    "pcma": "alaw",
}
MAX_CHANNELS = 64  # more is a [channels, samples] array that was not transposed, or a mistyped number
PEAK_LIMIT = 16.0  # 24 dB over full scale: a decoder's overshoot stays far below, unscaled integers far above


def encoding_name(encoding: str) -> str:
    """Return the canonical name of ``encoding``: a key of `ENCODINGS`.

    Raises:
        AudioError: the name is neither an encoding nor an alias of one.
    """
    name = _ALIASES.get(encoding.lower(), encoding.lower())
    if name not in ENCODINGS:
        valid = ", ".join([*ENCODINGS, *_ALIASES])
        raise AudioError(f"Unknown PCM encoding {encoding!r}; use one of: {valid}.")
    return name


def _mulaw_table() -> Samples:
    """Return the float32 `[256]` values of the mu-law codes, in units of full scale."""
    code = ~np.arange(256, dtype=np.uint8)  # every bit is sent inverted
    exponent, mantissa = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    magnitude = (((mantissa << 3) + 132) << exponent) - 132  # 132: the bias of 33, in 16 bits
    return (np.where(code & 128, -magnitude, magnitude) / 32768).astype(np.float32)


def _alaw_table() -> Samples:
    """Return the float32 `[256]` values of the A-law codes, in units of full scale."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55  # every other bit is sent inverted
    exponent, mantissa = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    linear = (mantissa << 4) + 8  # the middle of the step; segment 0 is linear
    magnitude = np.where(exponent == 0, linear, (linear + 256) << np.maximum(exponent - 1, 0))
    return (np.where(code & 128, magnitude, -magnitude) / 32768).astype(np.float32)


_G711 = {"mulaw": _mulaw_table(), "alaw": _alaw_table()}


def check_samples(samples: NDArray[np.floating], offset: int = 0) -> None:
    """Check that ``samples``, `[N]` or `[N, C]`, are numbers of an audio signal whose full scale is 1.

    ``offset`` is the number of samples that came before, so that the message counts from the beginning.

    Raises:
        AudioError: a sample is NaN, infinite, or so large that it is an unscaled integer or garbage; the
            message names the first one.
    """
    good = np.abs(samples) <= PEAK_LIMIT  # NaN is not
    if good.all():
        return
    first = np.unravel_index(int(np.argmin(good)), samples.shape)
    value = float(samples[first])
    channel = f" of channel {first[1]}" if samples.ndim == 2 and samples.shape[1] > 1 else ""
    place = f"at sample {offset + int(first[0])}{channel}"
    if not math.isfinite(value):
        what = "NaN" if math.isnan(value) else "an infinite value"
        raise AudioError(f"{what} {place}; all samples must be finite, so mend the source.")
    raise AudioError(
        f"Float audio has {value:g} {place}; full scale is 1, so divide integer samples by their range."
    )


def as_float32(array: ArrayLike, offset: int = 0) -> Samples:
    """Return audio as float32 in units of full scale, in the shape that it came in: `[N]` or `[N, C]`.

    int16 and int32 are divided by 2**15 and 2**31, uint8 is centred on 128; floats keep their values, also
    the small overshoot beyond ±1 that lossy codecs produce. A float32 array is returned as it is, not copied.
    ``offset`` is for messages, see `check_samples`.

    Raises:
        AudioError: the shape or dtype is another one, a sample is NaN or infinite, or floats are so large
            that they are unscaled integers.
    """
    data = np.asarray(array)
    if data.ndim not in (1, 2):
        raise AudioError(
            f"Audio of shape {list(data.shape)} was given; it must be [samples] or [samples, channels]."
        )
    if data.ndim == 2 and not 1 <= data.shape[1] <= MAX_CHANNELS:
        raise AudioError(
            f"Audio of shape {list(data.shape)} would have {data.shape[1]} channels; "
            f"give [samples, channels] with 1 to {MAX_CHANNELS} channels (transpose it?)."
        )
    kind = data.dtype.newbyteorder("=")
    if kind == np.int16:
        return data.astype(np.float32) / np.float32(2**15)
    if kind == np.int32:
        return data.astype(np.float32) / np.float32(2**31)
    if kind == np.uint8:
        return (data.astype(np.float32) - np.float32(128)) / np.float32(128)
    if kind not in (np.float32, np.float64):
        raise AudioError(
            f"Audio of dtype {data.dtype} was given; use int16, int32, uint8, float32 or float64."
        )
    check_samples(data, offset)
    return data.astype(np.float32, copy=False)


class PcmDecoder:
    """Decodes packets of raw, interleaved PCM bytes, cut anywhere, to float32 samples.

    Args:
        encoding: ``s16le`` (also ``int16``, ``pcm16``, ``linear16``), ``f32le`` (``float32``),
            ``mulaw`` (``ulaw``, ``pcmu``) or ``alaw`` (``pcma``).
        channels: how many channels are interleaved.

    Raises:
        AudioError: an unknown encoding, or a number of channels outside 1 to `MAX_CHANNELS`.
    """

    def __init__(self, encoding: str, channels: int = 1) -> None:
        if isinstance(channels, bool) or not isinstance(channels, int) or not 1 <= channels <= MAX_CHANNELS:
            raise AudioError(
                f"{channels!r} channels were given; use a whole number from 1 to {MAX_CHANNELS}."
            )
        self.encoding = encoding_name(encoding)
        self.channels = channels
        self._frame_bytes = ENCODINGS[self.encoding] * channels
        self._pending = b""
        self._decoded = 0  # samples per channel so far
        self._finished = False

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the rest of their sample, or for the other channels of their moment."""
        return len(self._pending)

    def decode(self, data: bytes | bytearray | memoryview) -> Samples:
        """Decode one packet to float32 `[N, channels]`; N is 0 while no moment is complete.

        Raises:
            AudioError: an ``f32le`` sample is NaN, infinite or far above 1; this packet is lost, the next can
                be decoded.
            SessionError: the decoder was finished.
        """
        if self._finished:
            raise SessionError("PCM bytes came after finish(); make a new PcmDecoder for a new stream.")
        buffer = self._pending + bytes(data)
        whole = len(buffer) - len(buffer) % self._frame_bytes
        self._pending = buffer[whole:]
        samples = self._to_float(buffer[:whole]).reshape(-1, self.channels)
        start = self._decoded
        self._decoded += len(samples)
        if self.encoding == "f32le":
            check_samples(samples, start)
        return samples

    def finish(self) -> int:
        """End the stream, drop the bytes of an incomplete last sample, and return how many were dropped.

        Half a sample has no value, so nothing audible is lost; a number other than 0 says that the sender
        stopped in the middle of a sample, or that the encoding or the number of channels is wrong.
        """
        dropped = len(self._pending)
        self._pending = b""
        self._finished = True
        return dropped

    def _to_float(self, data: bytes) -> Samples:
        """Return the float32 `[N]` values of whole samples."""
        if self.encoding == "s16le":
            return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(2**15)
        if self.encoding == "f32le":
            return np.frombuffer(data, "<f4").astype(np.float32)
        return _G711[self.encoding][np.frombuffer(data, np.uint8)]
