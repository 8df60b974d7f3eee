"""The state of many streams as MLX arrays, and the calls that step it: numpy in, numpy out.

Everything here belongs to one thread; `nemostream.runtimes.mlx` sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.config import ModelConfig
from nemostream.runtimes.mlx_network.conformer import LayerState
from nemostream.runtimes.mlx_network.rows import CallMasks
from nemostream.runtimes.mlx_network.subsampling import state_shapes
from nemostream.runtimes.mlx_network.weights import Precision, build_decoder, build_encoder
from nemostream.runtimes.protocol import Float32, Int64, PredictorState

Shape = tuple[int, ...]


class Arena:
    """Arrays [slots, ...] on the device; rows of them are taken out for a call and put back.

    Args:
        arrays: shape behind the slots, and dtype, of each array.
    """

    def __init__(self, arrays: Sequence[tuple[Shape, mx.Dtype]]) -> None:
        self._specs = list(arrays)
        self._arrays = [mx.zeros((0, *shape), dtype) for shape, dtype in arrays]

    def resize(self, slots: int) -> None:
        """Grow to ``slots`` slots; new ones are zero."""
        grown = []
        for array, (shape, dtype) in zip(self._arrays, self._specs, strict=True):
            fresh = mx.zeros((slots - array.shape[0], *shape), dtype)
            grown.append(mx.concatenate([array, fresh]))
        self._arrays = grown
        mx.eval(self._arrays)

    def reset(self, slot: int) -> None:
        """Set one slot to zero: masking alone would not do, since zero times infinity is no number."""
        for array in self._arrays:
            array[slot] = 0
        mx.eval(self._arrays)

    def take(self, slots: list[int]) -> list[mx.array]:
        """Rows [B, ...] of every array."""
        index = mx.array(slots)
        return [array[index] for array in self._arrays]

    def put(self, slots: list[int], rows: Sequence[mx.array], *results: mx.array) -> None:
        """Put rows back, and compute them and ``results``.

        Once the rows are taken nothing else holds the old arrays, so MLX writes into them instead of copying.
        """
        index = mx.array(slots)
        for array, row in zip(self._arrays, rows, strict=True):
            array[index] = row
        mx.eval(results, self._arrays)


class EncoderStreams:
    """Encoder, prompt and projection, with the caches of every slot.

    Args:
        checkpoint: the model.
        precision: how to compute.
        left_context: cached frames of attention.
        max_frames: most encoder frames of a call.
    """

    def __init__(
        self, checkpoint: Checkpoint, precision: Precision, left_context: int, max_frames: int
    ) -> None:
        config = checkpoint.config
        # a frame that nobody sees is simpler than an array without elements
        self._past = max(left_context, 1)
        self._network = build_encoder(checkpoint, precision, self._past, max_frames)
        self._layers = config.num_layers
        self._arena = Arena(self._specs(config))
        self._seen = np.zeros(0, np.int64)  # encoder frames of each slot's stream so far

    def _specs(self, config: ModelConfig) -> list[tuple[Shape, mx.Dtype]]:
        dtype = self._network.encoder_projector.weight.dtype
        size, gated = config.hidden_size, config.conv_kernel_size - 1
        layer = [(self._past, size), (self._past, size), (gated, size)]  # in the order of LayerState
        return [
            *[(shape, mx.float32) for shape in state_shapes(config)],
            *[(shape, dtype) for _ in range(config.num_layers) for shape in layer],
        ]

    def resize(self, slots: int) -> None:
        """Grow to ``slots`` slots."""
        self._arena.resize(slots)
        self._seen = np.pad(self._seen, (0, slots - len(self._seen)))

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""
        self._arena.reset(slot)
        self._seen[slot] = 0

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        """See `nemostream.runtimes.protocol.Runtime.encode`."""
        masks = CallMasks.of(mel_lengths, self._seen[slots], att_context, mel.shape[1], self._past)
        state = self._arena.take(slots)
        stem, rest = state[:3], state[3:]
        layers = [LayerState(*rest[3 * layer : 3 * layer + 3]) for layer in range(self._layers)]
        encoded, new_stem, new_layers = self._network.encoder(
            mx.array(mel.astype(np.float32, copy=False)),
            [mx.array(mask.astype(np.float32)) for mask in masks.stem],
            mx.array(masks.visible),
            stem,
            layers,
        )
        projected = self._network.project(encoded, mx.array(prompt_ids)).astype(mx.float32)
        del state, stem, rest, layers  # see Arena.put
        self._arena.put(slots, [*new_stem, *(array for new in new_layers for array in new)], projected)
        self._seen[slots] += masks.lengths
        return np.array(projected), masks.lengths


class DecoderStreams:
    """Predictor and joint, with the LSTM state of every slot.

    Args:
        checkpoint: the model.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        self._network = build_decoder(checkpoint)
        state = ((config.predictor_hidden_size,), mx.float32)
        self._arena = Arena([state] * (2 * config.predictor_layers))  # h and c of each layer

    def resize(self, slots: int) -> None:
        """Grow to ``slots`` slots."""
        self._arena.resize(slots)

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""
        self._arena.reset(slot)

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.predict`."""
        state = self._arena.take(slots)
        pairs = list(zip(state[::2], state[1::2], strict=True))
        predicted, new = self._network.decoder(mx.array(tokens), pairs)
        self._arena.put(slots, [array for pair in new for array in pair], predicted)
        return np.array(predicted)

    def predict_from(self, state: PredictorState, tokens: Int64) -> tuple[Float32, PredictorState]:
        """See `nemostream.runtimes.protocol.ForkingRuntime.predict_from`."""
        pairs = [(mx.array(h), mx.array(c)) for h, c in zip(*state, strict=True)]
        predicted, new = self._network.decoder(mx.array(tokens), pairs)
        h, c = (np.array(mx.stack(layers)) for layers in zip(*new, strict=True))
        return np.array(predicted), (h, c)

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """See `nemostream.runtimes.protocol.Runtime.joint`."""
        return np.array(mx.argmax(self._logits(encoded, predicted), axis=2)).astype(np.int64)

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.joint_logits`."""
        return np.array(self._logits(encoded, predicted))

    def _logits(self, encoded: Float32, predicted: Float32) -> mx.array:
        return self._network.joint(mx.array(encoded), mx.array(predicted)[:, None])
