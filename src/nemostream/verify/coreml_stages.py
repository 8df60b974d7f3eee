"""The inner stages of a CoreML bundle: what goes from graph to graph, on a stream of its own."""

from __future__ import annotations

import numpy as np

from nemostream.runtimes.coreml_bundle import Arrays as Outputs
from nemostream.runtimes.coreml_bundle import CoreMlBundleRuntime
from nemostream.runtimes.coreml_contract import shard_layers
from nemostream.runtimes.protocol import Float32, Int64
from nemostream.verify.stages import PRE_ENCODE, PROMPT, Arrays


class CoreMlStages:
    """`nemostream.verify.stages.InnerStages` of a CoreML bundle.

    Seen are the stem and the layer that ends each shard (layouts "sharded" and "watch"), and the encoder's
    frames: after the last layer (layout "single"), or after the prompt.
    """

    def __init__(self, runtime: CoreMlBundleRuntime) -> None:
        self._runtime = runtime
        self.start()

    def start(self) -> None:
        """Begin a new stream."""
        self._state: dict[str, Outputs] = {}

    def step(self, mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64) -> Arrays:
        """See `nemostream.verify.stages.InnerStages.step`."""
        runtime = self._runtime
        outputs = runtime.encoder_step(self._state, mel[0], int(mel_lengths[0]), int(prompt_ids[0]))
        seen: Arrays = {}
        if "encoder_pre_encode" in outputs:
            seen[PRE_ENCODE] = outputs["encoder_pre_encode"]["hidden"]
            for index, layers in enumerate(shard_layers(runtime.config.num_layers)[:-1]):
                if layers:
                    seen[f"layers.{layers[-1]}"] = outputs[f"encoder_shard_{index}"]["hidden_out"]
        graph, _, output = runtime.contract.encoded.partition(".")
        with_prompt = runtime.config.has_prompt and runtime.contract.layout != "single"
        last = PROMPT if with_prompt else f"layers.{runtime.config.num_layers - 1}"
        seen[last] = np.swapaxes(outputs[graph][output], 1, 2)
        return {name: value.astype(np.float32) for name, value in seen.items()}
