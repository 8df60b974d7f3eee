"""Channels are mixed, selected or split by an explicit choice; none is dropped silently."""

import numpy as np
import pytest

from nemostream.audio import select_channels, split_channels
from nemostream.errors import AudioError

STEREO = np.array([[1, 0], [0.5, -0.5], [0, 0.25]], np.float32)


def test_mix_is_the_mean_of_all_channels():
    mixed = select_channels(STEREO, "mix")
    assert mixed.dtype == np.float32
    assert mixed.tolist() == [0.5, 0, 0.125]


def test_an_index_selects_one_channel():
    assert select_channels(STEREO, 0).tolist() == [1, 0.5, 0]
    assert select_channels(STEREO, 1).tolist() == [0, -0.5, 0.25]


def test_split_gives_every_channel_in_order():
    assert [channel.tolist() for channel in split_channels(STEREO)] == [[1, 0.5, 0], [0, -0.5, 0.25]]


@pytest.mark.parametrize("channel", [2, -1])
def test_a_channel_that_is_not_there_is_refused_with_the_number_there_are(channel):
    with pytest.raises(AudioError, match="2 channels; use 'mix' or an index from 0 to 1"):
        select_channels(STEREO, channel)


@pytest.mark.parametrize("channel", ["left", True, 0.0, None])
def test_a_choice_that_is_no_index_is_refused(channel):
    with pytest.raises(AudioError, match="use 'mix' or an index"):
        select_channels(STEREO, channel)


@pytest.mark.parametrize("shape", [(5,), (5, 0), (1, 5, 2)])
def test_audio_without_a_channel_axis_is_refused(shape):
    with pytest.raises(AudioError, match="must be"):
        select_channels(np.zeros(shape, np.float32), "mix")
    with pytest.raises(AudioError, match="must be"):
        split_channels(np.zeros(shape, np.float32))
