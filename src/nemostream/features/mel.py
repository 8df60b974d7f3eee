"""Log-mel front end: 16 kHz samples in, one frame of mel bands every 10 ms out.

Pre-emphasis, a symmetric 400-sample Hann window, 512-point power spectrum, Slaney mel bands, natural
logarithm with a guard of 2^-24, no normalisation (NeMo's ``AudioToMelSpectrogramPreprocessor`` with
``normalize: NA``). Frame t sees the samples [160 t - 200, 160 t + 200) only, so it can be emitted the
moment its last sample arrives; `log_mel` and `IncrementalLogMel` are the same computation.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from nemostream.config import MEL_HOP_SAMPLES, SAMPLE_RATE

Float32 = NDArray[np.float32]

FFT_SIZE = 512
WINDOW_SAMPLES = 400
HALF_WINDOW = WINDOW_SAMPLES // 2
LOG_GUARD = np.float32(2.0**-24)
_FRAMES_PER_BLOCK = 1024  # bounds the memory of one transform to about 10 MB


@functools.cache
def mel_filterbank(num_mel_bins: int = 128) -> Float32:
    """Return the Slaney-scale, area-normalised triangular filters, [num_mel_bins, 257].

    The scale is linear (200/3 Hz a mel) below 1 kHz and logarithmic (6.4 per 27 mels) above.
    """
    linear_hz, corner_hz, log_step = 200.0 / 3.0, 1000.0, np.log(6.4) / 27.0
    corner_mel = corner_hz / linear_hz
    top_mel = corner_mel + np.log(SAMPLE_RATE / 2 / corner_hz) / log_step
    mels = np.linspace(0.0, top_mel, num_mel_bins + 2)
    edges = np.where(mels < corner_mel, mels * linear_hz, corner_hz * np.exp(log_step * (mels - corner_mel)))
    bins = np.linspace(0.0, SAMPLE_RATE / 2, FFT_SIZE // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangle = np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre))
    filters: Float32 = (np.maximum(triangle, 0.0) * (2.0 / (high - low))).astype(np.float32)
    filters.setflags(write=False)
    return filters


@functools.cache
def _sparse_filterbank(num_mel_bins: int) -> tuple[NDArray[np.intp], Float32, NDArray[np.intp]]:
    """The non-zero weights of the filters: FFT bin and weight of each, and where each band starts.

    A band is summed over its own bins only. That is cheap, and unlike a matrix product it gives the same
    bits for a frame whatever number of frames is computed with it.
    """
    filters = mel_filterbank(num_mel_bins)
    bins: list[int] = []
    weights: list[float] = []
    starts: list[int] = []
    for band in filters:
        starts.append(len(bins))
        support = np.flatnonzero(band)
        chosen = support if support.size else np.zeros(1, np.intp)
        bins.extend(chosen.tolist())
        weights.extend(band[chosen].tolist())
    return np.array(bins), np.array(weights, np.float32), np.array(starts)


@functools.cache
def _hann_window() -> Float32:
    return np.hanning(WINDOW_SAMPLES).astype(np.float32)


class IncrementalLogMel:
    """Turns 16 kHz samples into log-mel frames as they arrive.

    The frames do not depend on how the samples were cut into packets, bit for bit.

    Args:
        num_mel_bins: mel bands.
        preemphasis: coefficient of ``y[n] = x[n] - preemphasis * x[n - 1]``; 0 switches it off.
    """

    def __init__(self, num_mel_bins: int = 128, preemphasis: float = 0.97) -> None:
        self._num_mel_bins = num_mel_bins
        self._preemphasis = np.float32(preemphasis)
        self._bins, self._weights, self._starts = _sparse_filterbank(num_mel_bins)
        self._pending = np.zeros(HALF_WINDOW, np.float32)  # frame 0 is centred on sample 0
        self._previous = np.float32(0.0)
        self._samples = 0
        self._frames = 0

    def feed(self, samples: Float32) -> Float32:
        """Take samples [N] and return the frames [t, num_mel_bins] that are now complete."""
        if samples.size == 0:
            return self._empty()
        samples = np.asarray(samples, np.float32)
        emphasised = np.empty_like(samples)
        emphasised[0] = samples[0] - self._preemphasis * self._previous
        emphasised[1:] = samples[1:] - self._preemphasis * samples[:-1]
        self._previous = samples[-1]
        self._samples += samples.size
        self._pending = np.concatenate([self._pending, emphasised])
        return self._emit((self._pending.size - WINDOW_SAMPLES) // MEL_HOP_SAMPLES + 1)

    def missing(self, frames: int) -> int:
        """How many more samples complete that many more frames."""
        return max(0, WINDOW_SAMPLES + (frames - 1) * MEL_HOP_SAMPLES - self._pending.size)

    def finish(self) -> Float32:
        """Return the last frames: in all, N samples give N // 160. The object is spent afterwards."""
        due = self._samples // MEL_HOP_SAMPLES - self._frames
        missing = (due - 1) * MEL_HOP_SAMPLES + WINDOW_SAMPLES - self._pending.size
        if due > 0 and missing > 0:
            self._pending = np.concatenate([self._pending, np.zeros(missing, np.float32)])
        return self._emit(due)

    def _emit(self, count: int) -> Float32:
        if count <= 0:
            return self._empty()
        blocks = []
        for start in range(0, count, _FRAMES_PER_BLOCK):
            frames = min(_FRAMES_PER_BLOCK, count - start)
            first = start * MEL_HOP_SAMPLES
            last = first + (frames - 1) * MEL_HOP_SAMPLES + WINDOW_SAMPLES
            blocks.append(self._transform(self._pending[first:last]))
        self._pending = self._pending[count * MEL_HOP_SAMPLES :].copy()
        self._frames += count
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _transform(self, samples: Float32) -> Float32:
        windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW_SAMPLES)[::MEL_HOP_SAMPLES]
        spectrum = np.fft.rfft(windows * _hann_window(), n=FFT_SIZE)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        mel = np.add.reduceat(power[:, self._bins] * self._weights, self._starts, axis=1)
        return np.log(mel + LOG_GUARD).astype(np.float32, copy=False)

    def _empty(self) -> Float32:
        return np.zeros((0, self._num_mel_bins), np.float32)


def log_mel(samples: Float32, num_mel_bins: int = 128, preemphasis: float = 0.97) -> Float32:
    """Return the log-mel frames [N // 160, num_mel_bins] of 16 kHz ``samples`` [N] in [-1, 1]."""
    front_end = IncrementalLogMel(num_mel_bins, preemphasis)
    return np.concatenate([front_end.feed(samples), front_end.finish()])
