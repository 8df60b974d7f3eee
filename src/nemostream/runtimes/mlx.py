"""MLX as a runtime: the encoder, and the decoder too or not, on the Apple GPU (on Linux, on the CPU).

Everything behind a runtime happens on `nemostream.runtimes.mlx_thread`; its callers may be on any.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.onnx_decoder import DECODER, JOINER
from nemostream.errors import BackendError
from nemostream.runtimes import mlx_thread
from nemostream.runtimes.calls import check_call
from nemostream.runtimes.mlx_network.streams import DecoderStreams, EncoderStreams
from nemostream.runtimes.mlx_network.weights import PRECISIONS, Precision
from nemostream.runtimes.protocol import Float32, Framing, Int64, PredictorState

MAX_FRAMES = 112  # of one call, 9 s; the position tables are as long

P = ParamSpec("P")
T = TypeVar("T")


class Decoder(Protocol):
    """Predictor and joint with the state of every slot: that part of the `ForkingRuntime` protocol."""

    def resize(self, slots: int) -> None:
        """Grow the arena."""

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """Feed one token to each slot."""

    def predict_from(self, state: PredictorState, tokens: Int64) -> tuple[Float32, PredictorState]:
        """Feed one token to each state."""

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """Most likely tokens."""

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """Logits."""


@dataclass
class _Halves:
    """What lives on the thread."""

    encoder: EncoderStreams
    decoder: Decoder

    def drop(self) -> None:
        """Free everything."""
        del self.encoder, self.decoder


class MlxRuntime:
    """`nemostream.runtimes.protocol.ForkingRuntime` on MLX, in native framing.

    Args:
        checkpoint: the model.
        precision: a name in `PRECISIONS`, or a `Precision` of one's own.
        decoder: predictor and joint; None for the checkpoint's, in MLX.
        left_context: room for attention context in a slot; None is the largest that was trained.

    Raises:
        BackendError: if the precision is unknown or impossible for this model, or MLX fails.
    """

    framing: Framing = "native"

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        precision: str | Precision = "fp32",
        decoder: Decoder | None = None,
        left_context: int | None = None,
    ) -> None:
        chosen = PRECISIONS.get(precision) if isinstance(precision, str) else precision
        if chosen is None:
            raise BackendError(
                f"MLX cannot compute in {precision!r}; the valid ones are: {', '.join(PRECISIONS)}."
            )
        self.name = "mlx" if decoder is None else "mlx-onnx"
        self.config, self.tokenizer = checkpoint.config, checkpoint.tokenizer
        contexts = self.config.att_context_sizes
        longest = max(MAX_FRAMES, *(right + 1 for _, right in contexts))
        self.max_frames: int | None = longest
        self.left_context = max(left for left, _ in contexts) if left_context is None else left_context
        self.slots = 0

        def build() -> _Halves:
            encoder = EncoderStreams(checkpoint, chosen, self.left_context, longest)
            return _Halves(encoder, decoder or DecoderStreams(checkpoint))

        self._halves = self._run(build)
        # MLX's arrays are freed where they were made; at the end of the program there is no need
        weakref.finalize(self, mlx_thread.submit, self._halves.drop).atexit = False

    def resize(self, slots: int) -> None:
        """Grow the arena to ``slots`` slots; what the old ones hold stays."""
        if slots <= self.slots:
            return
        self._run(self._halves.encoder.resize, slots)
        self._run(self._halves.decoder.resize, slots)
        self.slots = slots

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""
        self._run(self._halves.encoder.reset, slot)
        self._run(self._halves.decoder.reset, slot)

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        """See `nemostream.runtimes.protocol.Runtime.encode`.

        Raises:
            BackendError: if the call is not a whole number of frames, longer than ``max_frames``, or needs
                more left context than there is room for; or MLX fails.
        """
        check_call(self, mel, att_context)
        return self._run(self._halves.encoder.encode, slots, mel, mel_lengths, prompt_ids, att_context)

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.predict`."""
        return self._run(self._halves.decoder.predict, slots, tokens)

    def predict_from(self, state: PredictorState, tokens: Int64) -> tuple[Float32, PredictorState]:
        """See `nemostream.runtimes.protocol.ForkingRuntime.predict_from`."""
        return self._run(self._halves.decoder.predict_from, state, tokens)

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """See `nemostream.runtimes.protocol.Runtime.joint`."""
        return self._run(self._halves.decoder.joint, encoded, predicted)

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.joint_logits`."""
        return self._run(self._halves.decoder.joint_logits, encoded, predicted)

    def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on the runtime's thread and wait for it."""
        try:
            return mlx_thread.submit(function, *args, **kwargs).result()
        except RuntimeError as error:  # what MLX raises, when memory is short for example
            raise BackendError(f"MLX could not run the model: {error}.") from error


def onnx_decoder(checkpoint: Checkpoint) -> Decoder:
    """Predictor and joint on ONNX Runtime, from the graphs beside an MLX folder's weights.

    Raises:
        BackendError: if the checkpoint has no such graphs, or they are of another model.
    """
    folder = Path(checkpoint.source)
    predictor, joint = folder / DECODER, folder / JOINER
    if checkpoint.format != "mlx" or not (predictor.is_file() and joint.is_file()):
        raise BackendError(
            f"{folder} has no {DECODER} and {JOINER} for a decoder in ONNX Runtime; leave the decoder out, "
            f"or make a folder that has them with `nemostream convert {folder} --to mlx -o FOLDER`."
        )
    from nemostream.runtimes.onnx import default_threads
    from nemostream.runtimes.onnx_decoder import OnnxDecoder, session_options

    return OnnxDecoder(predictor, joint, checkpoint.config, session_options(default_threads()))
