"""Sounds and files that the audio tests share."""

import io
import struct

import av
import numpy as np
import soundfile

RATE = 48000


def sound(seconds: float = 1.5, rate: int = RATE) -> np.ndarray:
    """A 440 Hz tone that swells, so that a shifted or missing part would show."""
    time = np.arange(round(seconds * rate)) / rate
    return (0.4 * np.sin(2 * np.pi * 440 * time) * (0.2 + time / seconds)).astype(np.float32)


def encode(path, codec: str, signal: np.ndarray, *, rate: int = RATE, options=None, codec_options=None, **kw):
    """Write mono audio with FFmpeg."""
    with av.open(str(path), "w", options=options or {}, **kw) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        stream.options = codec_options or {}
        stream.bit_rate = 128_000
        frame = av.AudioFrame.from_ndarray(signal[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        stream.codec_context.open()
        fit = av.AudioResampler(
            stream.format, "mono", rate, frame_size=stream.codec_context.frame_size or 1152
        )
        for part in [*fit.resample(frame), *fit.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))


def wav_with_sizes(riff_size: int, data_size: int, tail: bytes = b"") -> tuple[bytes, np.ndarray]:
    """A 16 kHz WAV with these sizes in its header, and its samples."""
    memory = io.BytesIO()
    soundfile.write(memory, sound(), 16000, format="WAV", subtype="PCM_16")
    data = bytearray(memory.getvalue())
    data[4:8], data[40:44] = struct.pack("<I", riff_size), struct.pack("<I", data_size)
    return bytes(data) + tail, np.frombuffer(bytes(data[44:]), "<i2") / np.float32(32768)
