"""The reference network as a runtime of one stream whose inner stages can be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.export.onnx import half_precision_weights
from nemostream.model.encoder import EncoderState
from nemostream.model.uniform import DROPPED_FRAMES, UniformState, initial_uniform_state, uniform_step
from nemostream.runtimes.protocol import Float32, Framing, Int64
from nemostream.runtimes.torch import load_network
from nemostream.verify.stages import FUSED_JOINT, PRE_ENCODE, PROJECTION, PROMPT, Arrays


class Reference:
    """A `Runtime` with one slot, and `nemostream.verify.stages.InnerStages`.

    Args:
        checkpoint: the model.
        framing: of the port that is compared with it.
        half: round the matrices to fp16, as an fp16 bundle holds them, so that the comparison can be tight.
    """

    name = "reference"
    max_frames: int | None = None
    slots = 1

    def __init__(self, checkpoint: Checkpoint, framing: Framing = "native", *, half: bool = False) -> None:
        self.config, self.tokenizer, self.framing = checkpoint.config, checkpoint.tokenizer, framing
        self.left_context = max(left for left, _ in self.config.att_context_sizes)
        network = load_network(checkpoint)
        self.network = half_precision_weights(network).requires_grad_(False) if half else network
        self._seen: Arrays = {}
        self._watch()
        self._predictor_state = self.network.initial_predictor_state(1)
        self._first_prediction = self.predict([0], np.array([self.config.blank_id]))
        self.start()

    def start(self) -> None:
        """Begin a new stream."""
        encoder = self.network.encoder
        self._state: EncoderState | UniformState
        if self.framing == "uniform":
            self._state = initial_uniform_state(encoder, 1, self.left_context)
        else:
            self._state = encoder.initial_state(1, self.left_context)
        self._predictor_state = self.network.initial_predictor_state(1)

    def step(self, mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64) -> Arrays:
        """See `nemostream.verify.stages.InnerStages.step`; all stages can be seen."""
        self.encode([0], mel, mel_lengths, prompt_ids, att_context)
        return dict(self._seen)

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        """See `nemostream.runtimes.protocol.Runtime.encode`."""
        self._seen.clear()
        rows, lengths, context = (torch.from_numpy(array) for array in (mel, mel_lengths, att_context))
        encoder, state = self.network.encoder, self._state
        with torch.inference_mode():
            if isinstance(state, UniformState):
                x, frames, self._state = uniform_step(encoder, rows, lengths, state, context)
            else:
                x, frames, self._state = encoder(rows, lengths, state, context)
            x = self.network.fuse(x, torch.from_numpy(prompt_ids))
            if self.config.has_prompt:
                self._seen[PROMPT] = _array(x)
            x = self.network.encoder_projector(x)
        self._seen[PROJECTION] = _array(x)
        self._seen[FUSED_JOINT] = self.joint_logits(_array(x), self._first_prediction)
        return self._seen[PROJECTION], _array(frames)

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.predict`."""
        with torch.inference_mode():
            predicted, self._predictor_state = self.network.decoder(
                torch.from_numpy(tokens)[:, None], self._predictor_state
            )
        return _array(predicted[:, 0])

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """See `nemostream.runtimes.protocol.Runtime.joint`."""
        tokens: Int64 = self.joint_logits(encoded, predicted).argmax(axis=2)
        return tokens

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.joint_logits`."""
        with torch.inference_mode():
            return _array(self.network.joint(torch.from_numpy(encoded), torch.from_numpy(predicted)[:, None]))

    def resize(self, slots: int) -> None:
        """There is one slot, always."""

    def reset(self, slot: int) -> None:
        """Begin a new stream."""
        self.start()

    def _watch(self) -> None:
        """Record the output of every stage of the encoder when it runs."""
        dropped = DROPPED_FRAMES if self.framing == "uniform" else 0
        encoder = self.network.encoder
        self._record(encoder.subsampling, (PRE_ENCODE,), dropped)
        for index, layer in enumerate(encoder.layers):
            name = f"layers.{index}"
            self._record_input(layer.get_submodule("norm_self_att"), f"{name}.feed_forward1")
            keys_and_values = (None, f"{name}.self_attn.keys", f"{name}.self_attn.values")
            self._record(layer.get_submodule("self_attn"), keys_and_values)
            self._record_input(layer.get_submodule("norm_conv"), f"{name}.self_attn")
            self._record(layer.get_submodule("conv"), (None, f"{name}.conv.gated"))
            self._record_input(layer.get_submodule("norm_feed_forward2"), f"{name}.conv")
            self._record_input(layer.get_submodule("norm_out"), f"{name}.feed_forward2")
            self._record(layer, (name,))

    def _record_input(self, module: nn.Module, stage: str) -> None:
        """Record what goes into a norm: the stream after the module before it."""
        module.register_forward_pre_hook(lambda _, inputs: self._seen.update({stage: _array(inputs[0])}))

    def _record(self, module: nn.Module, stages: tuple[str | None, ...], dropped: int = 0) -> None:
        def keep(_module: nn.Module, _inputs: Any, output: Tensor | tuple[Any, ...]) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            for stage, tensor in zip(stages, outputs, strict=False):  # a module may return more
                if stage is not None:
                    self._seen[stage] = _array(tensor[:, dropped:])

        module.register_forward_hook(keep)


def _array(tensor: Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(tensor.detach().numpy())
