"""The stages of a model in the order of the data, and what a port has to offer to be compared at each.

    config, features,
    pre_encode,
    layers.N.feed_forward1, .self_attn.keys, .self_attn.values, .self_attn, .conv.gated, .conv,
             .feed_forward2, layers.N                        for every layer N
    prompt, projection,                                      the inner stages end here
    runtime, predictor, joint, tokens, tokenizer, text
    fused_joint                                              of ports that have predictor and joint in one
    graph NAME                                               each graph of a CoreML or Core AI bundle, alone

``.feed_forward1``, ``.self_attn``, ``.conv`` and ``.feed_forward2`` are the stream of the layer (the residual
sum) after that module; ``layers.N`` is the layer's output; keys, values and gated frames are what it keeps.

A stage depends on earlier ones only. So the first stage that differs is itself wrong, and what differs
after it may be its consequence.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from nemostream.config import ModelConfig
from nemostream.runtimes.protocol import Float32, Int64

PRE_ENCODE, PROMPT, PROJECTION = "pre_encode", "prompt", "projection"
IN_LAYER = (  # the stages inside a layer, in order; the layer's own output comes last
    "feed_forward1",
    "self_attn.keys",
    "self_attn.values",
    "self_attn",
    "conv.gated",
    "conv",
    "feed_forward2",
)
FUSED_JOINT = "fused_joint"  # logits [1, N, V + 1] of a chunk at a stream's start, by the fused decoder
GRAPH = "graph "  # begins the names of the stages of `nemostream.verify.graphs`
AFTER_ENCODER = ("runtime", "predictor", "joint", "tokens", "tokenizer", "text")

Arrays = dict[str, NDArray[Any]]


class InnerStages(Protocol):
    """The encoder of one stream, opened up. A new kind of bundle is compared layer by layer by giving one.

    Without it, any `nemostream.runtimes.protocol.Runtime` is still compared from its encoder output on.
    """

    def start(self) -> None:
        """Begin a new stream."""

    def step(self, mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64) -> Arrays:
        """Run the next call of the stream (the arguments are those of `Runtime.encode`, with one row).

        Returns:
            stage -> [1, N, ...] for those inner stages that can be seen, N frames of which those beyond the
            stream's end may hold anything.
        """


def inner_stages(config: ModelConfig) -> list[str]:
    """Names of all inner stages of a model, in order."""
    layers = [
        stage
        for layer in range(config.num_layers)
        for stage in (*(f"layers.{layer}.{part}" for part in IN_LAYER), f"layers.{layer}")
    ]
    return [PRE_ENCODE, *layers, *([PROMPT] if config.has_prompt else []), PROJECTION]


def all_stages(config: ModelConfig) -> list[str]:
    """Names of all stages of a model, in order."""
    return ["config", "features", *inner_stages(config), *AFTER_ENCODER]
