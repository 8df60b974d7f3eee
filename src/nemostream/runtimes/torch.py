"""The reference network as a runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.model.encoder import EncoderState
from nemostream.model.network import Network
from nemostream.model.uniform import UniformState, initial_uniform_state, uniform_step
from nemostream.runtimes.protocol import Float32, Framing, Int64, PredictorState


def load_network(checkpoint: Checkpoint) -> Network:
    """The network with a checkpoint's weights, in fp32, ready for inference."""
    with torch.device("meta"):
        network = Network(checkpoint.config)
    weights = {
        name: torch.from_numpy(np.asarray(value)).float() for name, value in checkpoint.tensors.items()
    }
    network.load_state_dict(weights, strict=True, assign=True)
    return network.eval().requires_grad_(False)


class TorchRuntime:
    """`nemostream.runtimes.protocol.Runtime` on PyTorch, in fp32.

    Args:
        checkpoint: the model.
        framing: "native", or "uniform" for the numbers of NeMo's fixed-shape exports.
        device: where to run.
        threads: CPU threads; None leaves PyTorch's own choice.
        left_context: room for attention context in a slot; None is the largest that was trained.
    """

    name = "torch"
    max_frames: int | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        framing: Framing = "native",
        device: str = "cpu",
        threads: int | None = None,
        left_context: int | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.config, self.tokenizer, self.framing = checkpoint.config, checkpoint.tokenizer, framing
        self.left_context = left_context or max(left for left, _ in self.config.att_context_sizes)
        self.slots = 0
        self._network = load_network(checkpoint).to(device)
        self._device = torch.device(device)
        self._arena: list[Tensor] = []  # encoder state, then the predictor's h and c
        # which dimension of each counts the slots: caches are [layers, B, ...], the rest is [B, ...]
        encoder_dimensions = (1, 1, 0) if framing == "uniform" else (1, 1, 1, 0, 0, 0, 0)
        self._dimensions = (*encoder_dimensions, 1, 1)
        self._tables: dict[int, list[Tensor]] = {}

    def resize(self, slots: int) -> None:
        """Grow the arena to ``slots`` slots; what the old ones hold stays."""
        fresh = self._initial_state(slots - self.slots)
        if self._arena:
            fresh = [
                torch.cat([old, new], dim=dimension)
                for old, new, dimension in zip(self._arena, fresh, self._dimensions, strict=True)
            ]
        self._arena, self.slots = fresh, slots

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""
        for tensor, dimension in zip(self._arena, self._dimensions, strict=True):
            tensor.select(dimension, slot).zero_()

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        """See `nemostream.runtimes.protocol.Runtime.encode`."""
        rows, contexts = self._tensor(mel), self._tensor(att_context)
        lengths = self._tensor(mel_lengths)
        with torch.inference_mode():
            state = self._gather(slots, slice(0, -2))
            step = self._uniform if self.framing == "uniform" else self._native
            encoded, frames, state = step(rows, lengths, state, contexts)
            projected = self._network.project(encoded, self._tensor(prompt_ids))
            self._scatter(slots, slice(0, -2), state)
        return projected.cpu().numpy(), frames.cpu().numpy()

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.predict`."""
        with torch.inference_mode():
            hidden, cell = self._gather(slots, slice(-2, None))
            predicted, state = self._network.decoder(self._tensor(tokens)[:, None], (hidden, cell))
            self._scatter(slots, slice(-2, None), list(state))
        return predicted[:, 0].cpu().numpy()  # type: ignore[no-any-return]

    def predict_from(self, state: PredictorState, tokens: Int64) -> tuple[Float32, PredictorState]:
        """See `nemostream.runtimes.protocol.ForkingRuntime.predict_from`."""
        with torch.inference_mode():
            given = (self._tensor(state[0]), self._tensor(state[1]))
            predicted, (h, c) = self._network.decoder(self._tensor(tokens)[:, None], given)
        return predicted[:, 0].cpu().numpy(), (h.cpu().numpy(), c.cpu().numpy())

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """See `nemostream.runtimes.protocol.Runtime.joint`."""
        return self._logits(encoded, predicted).argmax(dim=2).cpu().numpy()

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.joint_logits`."""
        return self._logits(encoded, predicted).cpu().numpy()

    def _logits(self, encoded: Float32, predicted: Float32) -> Tensor:
        with torch.inference_mode():
            return self._network.joint(self._tensor(encoded), self._tensor(predicted)[:, None])  # type: ignore[no-any-return]

    def _native(
        self, mel: Tensor, lengths: Tensor, state: list[Tensor], contexts: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        encoder = self._network.encoder
        tables = self._position_tables(mel.shape[1] // 8)
        encoded, frames, new = encoder(
            mel, lengths, EncoderState.from_tensors(tuple(state)), contexts, tables
        )
        return encoded, frames, list(new.tensors())

    def _uniform(
        self, mel: Tensor, lengths: Tensor, state: list[Tensor], contexts: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        tables = self._position_tables(mel.shape[1] // 8 - 1)
        encoder = self._network.encoder
        encoded, frames, new = uniform_step(encoder, mel, lengths, UniformState(*state), contexts, tables)
        return encoded, frames, list(new)

    def _position_tables(self, frames: int) -> list[Tensor]:
        if frames not in self._tables:
            self._tables[frames] = self._network.encoder.position_tables(self.left_context, frames)
        return self._tables[frames]

    def _initial_state(self, slots: int) -> list[Tensor]:
        encoder = self._network.encoder
        if self.framing == "uniform":
            state = list(initial_uniform_state(encoder, slots, self.left_context))
        else:
            state = list(encoder.initial_state(slots, self.left_context).tensors())
        return [*state, *self._network.initial_predictor_state(slots)]

    def _gather(self, slots: list[int], part: slice) -> list[Tensor]:
        return self._each(slots, part, lambda tensor, dimension, index: tensor.index_select(dimension, index))

    def _scatter(self, slots: list[int], part: slice, state: list[Tensor]) -> None:
        values = iter(state)
        self._each(
            slots, part, lambda tensor, dimension, index: tensor.index_copy_(dimension, index, next(values))
        )

    def _each(
        self, slots: list[int], part: slice, act: Callable[[Tensor, int, Tensor], Tensor]
    ) -> list[Tensor]:
        index = torch.tensor(slots, device=self._device)
        pairs = zip(self._arena[part], self._dimensions[part], strict=True)
        return [act(tensor, dimension, index) for tensor, dimension in pairs]

    def _tensor(self, array: Float32 | Int64) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
