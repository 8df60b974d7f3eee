"""The inner stages of a Core AI bundle: what goes from graph to graph, on a stream of its own."""

from __future__ import annotations

import numpy as np

from nemostream.runtimes.coreai import CoreAiRuntime
from nemostream.runtimes.coreai_graphs import DECODER_JOINT
from nemostream.runtimes.protocol import Float32, Int64
from nemostream.verify.stages import FUSED_JOINT, Arrays


class CoreAiStages:
    """`nemostream.verify.stages.InnerStages` of a Core AI bundle.

    Seen are the stem (layout "six"), the layer that ends each graph, the prompt (layout "sharded") and the
    projection; and of the layout "sharded" the fused decoder, which apps use and the runtime does not.
    """

    def __init__(self, runtime: CoreAiRuntime) -> None:
        self._encoder, self._runtime = runtime.encoder, runtime
        self.start()

    def start(self) -> None:
        """Begin a new stream."""
        self._state = self._encoder.begin()

    def step(self, mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64) -> Arrays:
        """See `nemostream.verify.stages.InnerStages.step`."""
        stages, _ = self._encoder.step(self._state, mel[0], int(mel_lengths[0]), int(prompt_ids[0]))
        seen: Arrays = {name: value[None] for name, value in stages.items()}
        if self._runtime.framing == "uniform":
            seen[FUSED_JOINT] = self._fused(stages[self._encoder.last_stage])
        return seen

    def _fused(self, encoded: Float32) -> Float32:
        """Logits of the frames [N, D] after the blank, by the main entry point of the decoder."""
        config = self._runtime.config
        zeros = np.zeros((config.predictor_layers, 1, config.predictor_hidden_size), np.float32)
        inputs = {
            "token": np.array([[config.blank_id]]),
            "token_length": np.array([1]),
            "h_in": zeros,
            "c_in": zeros,
            "encoder": encoded.T[None],
        }
        logits: Float32 = self._runtime.assets.call(DECODER_JOINT, inputs)["logits"]
        return logits
