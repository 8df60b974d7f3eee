"""Layout "sharded": the front end as a graph, log-mel frames of one chunk of audio.

It knows nothing before or after its chunk (that is the published contract), so the frames at both ends are
those of a recording that is cut there. `nemostream.features` is the exact, incremental front end, which the
runtimes of this project use.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nemostream.config import MEL_HOP_SAMPLES, ModelConfig
from nemostream.features.mel import FFT_SIZE, HALF_WINDOW, LOG_GUARD, WINDOW_SAMPLES, mel_filterbank


class Preprocessor(nn.Module):
    """Samples [1, N] and how many are real [1] to log-mel [1, F, N / 160] and how many frames are real [1].

    The Fourier transform is a convolution with windowed cosines and sines, since CoreML has no other.
    """

    def __init__(self, config: ModelConfig, samples: int) -> None:
        super().__init__()
        self.frames = samples // MEL_HOP_SAMPLES
        self.preemphasis = config.preemphasis
        phase = 2 * np.pi / FFT_SIZE * np.outer(np.arange(FFT_SIZE // 2 + 1), np.arange(WINDOW_SAMPLES))
        waves = np.concatenate([np.cos(phase), np.sin(phase)]) * np.hanning(WINDOW_SAMPLES)
        self.register_buffer("waves", torch.from_numpy(waves.astype(np.float32)).unsqueeze(1))
        self.register_buffer("filters", torch.from_numpy(mel_filterbank(config.num_mel_bins).copy()))

    def forward(self, audio: Tensor, audio_length: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and their number -> frames and their number."""
        before = nn.functional.pad(audio, (1, 0))[:, :-1]
        real = torch.arange(audio.shape[1]) < audio_length[:, None]
        emphasised = (audio - self.preemphasis * before) * real.to(audio.dtype)
        padded = nn.functional.pad(emphasised, (HALF_WINDOW, HALF_WINDOW)).unsqueeze(1)
        spectrum = nn.functional.conv1d(padded, self.waves, stride=MEL_HOP_SAMPLES)[:, :, : self.frames]  # type: ignore[arg-type]
        cosines, sines = spectrum.chunk(2, dim=1)
        mel = torch.matmul(self.filters, cosines * cosines + sines * sines)  # type: ignore[arg-type]
        lengths = audio_length // MEL_HOP_SAMPLES
        valid = torch.arange(self.frames) < lengths[:, None]
        return torch.log(mel + float(LOG_GUARD)) * valid.unsqueeze(1).to(mel.dtype), lengths
