"""From encoder frames to tokens."""

from nemostream.decoding.decoder import Decoder, DecodingOptions, decoder_for
from nemostream.decoding.greedy import GreedyDecoder, Hypothesis

__all__ = ["Decoder", "DecodingOptions", "GreedyDecoder", "Hypothesis", "decoder_for"]
