"""Conversion of the sample rate, packet by packet, with one state for the whole stream."""

from __future__ import annotations

import numpy as np
import soxr

from nemostream.audio.pcm import Samples
from nemostream.errors import AudioError, SessionError

MIN_RATE = 4000  # Hz; below this no speech is intelligible
MAX_RATE = 384_000  # Hz; the highest rate that audio interfaces offer


def check_rate(rate: int, what: str = "sample rate") -> int:
    """Return ``rate`` in Hz as an int; ``what`` names it in the message.

    Raises:
        AudioError: not a whole number from `MIN_RATE` to `MAX_RATE`.
    """
    number = isinstance(rate, int | float | np.integer | np.floating) and not isinstance(rate, bool)
    if not number or not MIN_RATE <= rate <= MAX_RATE or rate != int(rate):
        raise AudioError(
            f"The {what} is {rate!r}; it must be a whole number from {MIN_RATE} to {MAX_RATE} Hz."
        )
    return int(rate)


class Resampler:
    """Resamples one mono stream; its output does not depend on where the packets were cut.

    libsoxr at its "HQ" setting keeps its filter's history between packets, so a packet's border leaves no
    trace. Equal rates pass the samples through. The whole output has the duration of the whole input: N
    samples become N * target / source, to within one sample, once `finish` has given the filter's tail.

    Args:
        source_rate: Hz of what is fed.
        target_rate: Hz of what comes out.

    Raises:
        AudioError: a rate is not a whole number from `MIN_RATE` to `MAX_RATE`.
    """

    def __init__(self, source_rate: int, target_rate: int = 16_000) -> None:
        self.source_rate = check_rate(source_rate, "source sample rate")
        self.target_rate = check_rate(target_rate, "target sample rate")
        self._finished = False
        self._stream: soxr.ResampleStream | None = None
        if self.source_rate != self.target_rate:
            self._stream = soxr.ResampleStream(self.source_rate, self.target_rate, 1, dtype="float32")

    def feed(self, samples: Samples) -> Samples:
        """Resample float32 ``samples`` `[N]` to float32 `[M]`; M may be 0, as the filter looks ahead.

        Raises:
            AudioError: ``samples`` is not a float32 `[N]` array.
            SessionError: the stream was finished.
        """
        if samples.ndim != 1 or samples.dtype != np.float32:
            raise AudioError(
                f"Audio of shape {list(samples.shape)} and dtype {samples.dtype} was fed to the resampler; "
                "it takes float32 [samples] of one channel."
            )
        return self._process(samples, last=False)

    def finish(self) -> Samples:
        """End the stream and return float32 `[M]`: the tail that the filter still held.

        Raises:
            SessionError: the stream was finished before.
        """
        tail = self._process(np.zeros(0, np.float32), last=True)
        self._finished = True
        return tail

    def _process(self, samples: Samples, last: bool) -> Samples:
        if self._finished:
            raise SessionError("Audio came after finish(); make a new Resampler for a new stream.")
        if self._stream is None:
            return samples
        resampled: Samples = self._stream.resample_chunk(samples, last=last)
        return resampled
