"""The seam below the engine: what a runtime offers. Numpy at the border, state behind it."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemostream.config import ModelConfig
from nemostream.text.tokenizer import Tokenizer

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

PredictorState = tuple[Float32, Float32]  # (h, c), [layers, B, H] each

Framing = Literal["native", "uniform"]


class Runtime(Protocol):
    """A loaded model that can step many streams at once.

    The state of a stream lives in a slot of the runtime's arena; the caller only holds slot numbers. Rows of
    a call are independent of each other, and a row's results do not depend on which rows are beside it.
    A runtime is used by one thread at a time.

    Attributes:
        name: short name, such as "onnx".
        config: the model.
        tokenizer: its pieces.
        framing: how mel frames are cut into calls, see `nemostream.framing`; a property of the bundle.
        max_frames: most encoder frames that one call may produce, or None without a limit.
        left_context: encoder frames of attention context that a slot has room for.
        slots: slots in the arena.
    """

    name: str
    config: ModelConfig
    tokenizer: Tokenizer
    framing: Framing
    max_frames: int | None
    left_context: int
    slots: int

    def resize(self, slots: int) -> None:
        """Grow the arena to ``slots`` slots; what the old ones hold stays. New ones need `reset`."""

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream: empty caches, zero predictor state."""

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        """Run the encoder, the prompt and the projection to the joint on a whole number of chunks.

        Args:
            slots: B different slots.
            mel: [B, M, F] rows as `nemostream.framing` lays them out.
            mel_lengths: [B], rows up to the last real one. A row that is not full is its stream's last.
            prompt_ids: [B] language slots; 0 for a model without a prompt.
            att_context: [B, 2], left and right context of each stream.

        Returns:
            encoded [B, N, J] and valid frames [B].
        """

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """Feed one token [B] to the predictor of each slot and keep its new state; returns [B, J]."""

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """Most likely token for encoded [B, W, J] under predicted [B, J]: [B, W]."""

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """Logits [B, W, V + 1] for encoded [B, W, J] under predicted [B, J]."""


@runtime_checkable
class FixedRuntime(Runtime, Protocol):
    """A runtime whose graphs take calls of one size, for one context.

    Attributes:
        call_frames: encoder frames of every call; several chunks of right + 1 frames, one, or a part of one.
        att_context: (left, right) context that the bundle was made for.
    """

    call_frames: int
    att_context: tuple[int, int]


@runtime_checkable
class ForkingRuntime(Runtime, Protocol):
    """A runtime whose predictor can also run from a state that the caller holds, as a beam search needs."""

    def predict_from(self, state: PredictorState, tokens: Int64) -> tuple[Float32, PredictorState]:
        """Feed one token [B] to the predictor in each state; returns [B, J] and the new states."""
