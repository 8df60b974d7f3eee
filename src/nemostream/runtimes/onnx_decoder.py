"""Predictor and joint on ONNX Runtime, with the LSTM state of every slot; and what its sessions need.

`nemostream.runtimes.onnx` has them behind an encoder of its own, `nemostream.runtimes.mlx` behind one on the
GPU. `nemostream.runtimes.onnx_graphs` has the names in the graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from nemostream.config import ModelConfig
from nemostream.errors import BackendError
from nemostream.runtimes.protocol import Float32, Int64, PredictorState

Array = NDArray[Any]
CPU = ("CPUExecutionProvider",)
_ERRORS_ONLY = 3  # ONNX Runtime's log severity


class OnnxDecoder:
    """That part of `nemostream.runtimes.protocol.ForkingRuntime` which is behind the encoder.

    Args:
        predictor: the graph ``predictor.onnx``, under whatever name.
        joint: the graph ``joint.onnx``.
        config: the model.
        options: from `session_options`.
        providers: ONNX Runtime execution providers, in order of preference.

    Raises:
        BackendError: if ONNX Runtime cannot load a graph, or it is not of this model.
    """

    def __init__(
        self,
        predictor: Path,
        joint: Path,
        config: ModelConfig,
        options: Any,
        providers: Sequence[str] = CPU,
    ) -> None:
        self._predictor = load_session(predictor, options, providers)
        self._joint = load_session(joint, options, providers)
        state = [config.predictor_layers, config.predictor_hidden_size]
        width, classes = config.joint_hidden_size, config.vocab_size + 1
        wanted = {"tokens": [], "h": state, "c": state, "predicted": [width], "new_h": state, "new_c": state}
        _check(predictor, self._predictor, wanted)
        _check(
            joint, self._joint, {"encoded": [width], "predicted": [width], "logits": [classes], "tokens": []}
        )
        self._state = [np.zeros((state[0], 0, state[1]), np.float32) for _ in "hc"]

    def sibling(self) -> Self:
        """A decoder with a state of its own on the same weights, for another thread at the same time."""
        other = copy.copy(self)
        other._state = [array[:, :0] for array in self._state]
        return other

    def resize(self, slots: int) -> None:
        """Grow to ``slots`` slots; what the old ones hold stays."""
        more = slots - self._state[0].shape[1]
        self._state = [np.pad(array, ((0, 0), (0, more), (0, 0))) for array in self._state]

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""
        for array in self._state:
            array[:, slot] = 0

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.predict`."""
        h, c = (array[:, slots] for array in self._state)
        predicted, state = self.predict_from((h, c), tokens)
        for array, value in zip(self._state, state, strict=True):
            array[:, slots] = value
        return predicted

    def predict_from(self, state: PredictorState, tokens: Int64) -> tuple[Float32, PredictorState]:
        """See `nemostream.runtimes.protocol.ForkingRuntime.predict_from`."""
        h, c = (contiguous(array, np.float32) for array in state)
        feeds = {"tokens": contiguous(tokens, np.int64), "h": h, "c": c}
        predicted, new_h, new_c = _run(self._predictor, ["predicted", "new_h", "new_c"], feeds)
        return predicted, (new_h, new_c)

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """See `nemostream.runtimes.protocol.Runtime.joint`."""
        return self._run_joint("tokens", encoded, predicted)

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.joint_logits`."""
        return self._run_joint("logits", encoded, predicted)

    def _run_joint(self, output: str, encoded: Float32, predicted: Float32) -> Array:
        feeds = {"encoded": contiguous(encoded, np.float32), "predicted": contiguous(predicted, np.float32)}
        (result,) = _run(self._joint, [output], feeds)
        return result


def session_options(threads: int, spin: bool = False, affinity: str | None = None) -> Any:
    """Options of a session, see `nemostream.runtimes.onnx.OnnxRuntime`."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    if affinity is not None:
        options.add_session_config_entry("session.intra_op_thread_affinities", affinity)
    return options


def load_session(path: Path, options: Any, providers: Sequence[str]) -> Any:
    """Load a graph.

    Raises:
        BackendError: if this onnxruntime has no such provider, or cannot load the graph.
    """
    missing = [name for name in providers if name not in ort.get_available_providers()]
    if missing:
        available = ", ".join(ort.get_available_providers())
        raise BackendError(f"This onnxruntime has no {missing[0]}; it has: {available}.")
    try:
        return ort.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise failure(f"ONNX Runtime could not load {path}", error) from error


def failure(what: str, error: Exception) -> BackendError:
    """What to raise for an exception of ONNX Runtime."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return BackendError(f"{what}: {reason}.")


def contiguous(array: Array, dtype: type[np.generic]) -> Array:
    """The same numbers as ONNX Runtime wants them."""
    return np.ascontiguousarray(array, dtype)


def _run(session: Any, outputs: list[str], feeds: dict[str, Array]) -> list[Array]:
    try:
        return session.run(outputs, feeds)  # type: ignore[no-any-return]
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise failure("ONNX Runtime could not run the decoder", error) from error


def _check(path: Path, session: Any, wanted: dict[str, list[int]]) -> None:
    """Raise unless a graph has the names that are wanted, with the sizes that are fixed."""
    found = {
        value.name: [size for size in value.shape if isinstance(size, int)]
        for value in (*session.get_inputs(), *session.get_outputs())
    }
    if found != wanted:
        raise BackendError(
            f"{path} is not a graph that nemostream wrote for this model: it has {found}, and {wanted} was "
            "expected; convert the model again with `nemostream convert`."
        )
