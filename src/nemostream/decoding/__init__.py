"""From encoder frames to tokens."""

from nemostream.decoding.greedy import GreedyDecoder, Hypothesis

__all__ = ["GreedyDecoder", "Hypothesis"]
