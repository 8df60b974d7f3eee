"""The explicit choice of what becomes of several channels: mixed, one selected, or each apart."""

from __future__ import annotations

from typing import Literal

import numpy as np

from nemostream.audio.pcm import Samples
from nemostream.errors import AudioError

Channels = Literal["mix"] | int
"""``"mix"`` for the mean of all channels, or the 0-based index of the only one to hear."""


def check_channels(channels: Channels, available: int) -> None:
    """Check that the choice ``channels`` can be made among ``available`` channels.

    Raises:
        AudioError: neither ``"mix"`` nor an index below ``available``; the message names that number.
    """
    if channels == "mix":
        return
    if isinstance(channels, bool) or not isinstance(channels, int | np.integer):
        raise AudioError(f"Channel {channels!r} was asked for; use 'mix' or an index from 0.")
    if not 0 <= channels < available:
        there = "there is 1 channel" if available == 1 else f"there are {available} channels"
        raise AudioError(
            f"Channel {channels} was asked for, but {there}; use 'mix' or an index from 0 to {available - 1}."
        )


def select_channels(samples: Samples, channels: Channels) -> Samples:
    """Return float32 `[N]`: the mean of the channels of ``samples`` `[N, C]`, or the channel of that index.

    Raises:
        AudioError: ``samples`` is not `[N, C]`, or has no such channel.
    """
    _check_shape(samples)
    check_channels(channels, samples.shape[1])
    if channels == "mix":
        mean: Samples = samples.mean(axis=1, dtype=np.float32)
        return mean
    chosen: Samples = samples[:, channels]
    return chosen


def split_channels(samples: Samples) -> list[Samples]:
    """Return the C channels of ``samples`` `[N, C]`, each `[N]`, as views in their order.

    Raises:
        AudioError: ``samples`` is not `[N, C]`.
    """
    _check_shape(samples)
    return [samples[:, index] for index in range(samples.shape[1])]


def _check_shape(samples: Samples) -> None:
    if samples.ndim != 2 or samples.shape[1] == 0:
        raise AudioError(f"Audio of shape {list(samples.shape)} was given; it must be [samples, channels].")
