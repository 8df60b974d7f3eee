"""What Core AI bundles are made of: names that `nemostream.export.coreai` writes and the runtime reads.

A graph is an asset, a folder ``NAME.aimodel``, with one or more entry points that share its weights. ``main``
is the published contract of the layout; the others are there for the end of a stream and for decoders.

    layout    framing   folder   graphs
    six       native    macos    stem of the first chunk, stem, two halves of the layers, predictor, joint
    sharded   uniform   coreai   four shards of the encoder, predictor and joint in one
"""

from __future__ import annotations

from typing import Literal

from nemostream.runtimes.coreml_contract import SHARDS
from nemostream.runtimes.protocol import Framing

Layout = Literal["six", "sharded"]

MAIN = "main"
LAST = "last"  # of the two stems: with ``mel_length``, for a stream's last, shorter chunk
PROJECT = "project"  # of `DECODER_JOINT`: encoder frames to the width of the joint
PREDICT_ONLY, JOINT_ONLY = "predict", "joint"  # of `DECODER_JOINT`
CHUNK = "chunk"  # of `JOINT`: all frames of a chunk in one call

PRE_FIRST, PRE = "stream_pre_first", "stream_pre"
CONFORMER_A, CONFORMER_B = "stream_conformer_a", "stream_conformer_b"
PREDICT, JOINT = "predict", "joint"
SIX = (PRE_FIRST, PRE, CONFORMER_A, CONFORMER_B, PREDICT, JOINT)

DECODER_JOINT = "decoder_joint"

STEM_CACHES = ("conv1_cache", "conv2_cache", "conv3_cache")  # input and, with ``_out``, output
LAYER_CACHES = ("k_cache", "v_cache", "conv_cache")
UNIFORM_CACHES = ("cache_channel", "cache_time", "cache_len")
LSTM_STATE = ("h", "c")
HIDDEN_KEY = -1e4  # in ``neg_mask``, where a key can't be seen; 0 where it can

FOLDERS: dict[Framing, str] = {"native": "macos", "uniform": "coreai"}


def out(names: tuple[str, ...]) -> tuple[str, ...]:
    """Output names of caches."""
    return tuple(f"{name}_out" for name in names)


def first_half(num_layers: int) -> range:
    """Layers of ``stream_conformer_a``; the others are those of ``stream_conformer_b``."""
    return range((num_layers + 1) // 2)


def shard(index: int, weights: str) -> str:
    """Name of a shard of the encoder."""
    return f"encoder_shard_{index}_{weights}"


def graph_names(framing: Framing, weights: str) -> tuple[str, ...]:
    """All graphs of a bundle."""
    if framing == "native":
        return SIX
    return (*(shard(index, weights) for index in range(SHARDS)), DECODER_JOINT)


def asset_path(framing: Framing, name: str) -> str:
    """Path of a graph inside its bundle."""
    return f"{FOLDERS[framing]}/{name}.aimodel"
