"""The front end once more, in double precision and from its definition: slow, and for comparison only."""

from __future__ import annotations

import numpy as np

from nemostream.config import MEL_HOP_SAMPLES
from nemostream.features.mel import FFT_SIZE, HALF_WINDOW, LOG_GUARD, WINDOW_SAMPLES, mel_filterbank
from nemostream.runtimes.protocol import Float32


def exact_log_mel(samples: Float32, num_mel_bins: int, preemphasis: float) -> Float32:
    """Return the log-mel frames [N // 160, num_mel_bins] of 16 kHz ``samples`` [N]."""
    signal = samples.astype(np.float64)
    signal[1:] -= np.float32(preemphasis) * samples[:-1].astype(np.float64)
    padded = np.pad(signal, (HALF_WINDOW, WINDOW_SAMPLES))
    window, filters = np.hanning(WINDOW_SAMPLES), mel_filterbank(num_mel_bins).astype(np.float64)
    frames = [
        padded[MEL_HOP_SAMPLES * t : MEL_HOP_SAMPLES * t + WINDOW_SAMPLES] * window
        for t in range(len(samples) // MEL_HOP_SAMPLES)
    ]
    power = np.abs(np.fft.rfft(np.array(frames).reshape(-1, WINDOW_SAMPLES), n=FFT_SIZE)) ** 2
    return np.log(power @ filters.T + LOG_GUARD).astype(np.float32)
