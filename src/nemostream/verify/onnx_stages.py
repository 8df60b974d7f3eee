"""The inner stages of an ONNX bundle.

Keys, values and gated frames of every layer are outputs of the graph. The rest is found by its structure,
whatever the values are called: a layer has six LayerNormalization nodes, and what goes into them, or comes
out of the last, is the stream of the layer after each of its modules. These values are made outputs of a copy
of the graph, in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from nemostream.checkpoints.files import optional_module
from nemostream.config import ModelConfig
from nemostream.errors import BackendError
from nemostream.runtimes import onnx_graphs as graphs
from nemostream.runtimes.onnx import Bindings, OnnxRuntime
from nemostream.runtimes.protocol import Float32, Int64
from nemostream.verify.stages import PRE_ENCODE, PROJECTION, PROMPT, Arrays

_KIND_STAGES = {"keys": "self_attn.keys", "values": "self_attn.values", "gated": "conv.gated"}
# which stage goes into each LayerNormalization of a layer: norm_feed_forward1 (the layer before),
# norm_self_att, norm_conv, conv.norm (not compared), norm_feed_forward2, norm_out
_NORM_INPUTS = (None, "feed_forward1", "self_attn", None, "conv", "feed_forward2")
_PROMPT_WEIGHTS = "prompt_projector.linear_2"


class OnnxStages:
    """`nemostream.verify.stages.InnerStages` of an ONNX bundle.

    Args:
        folder: the bundle.

    Raises:
        BackendError: if the package onnx is missing, or the graph cannot run.
    """

    def __init__(self, folder: Path) -> None:
        self._runtime = _OpenedRuntime(folder)
        self._runtime.resize(1)
        self.start()

    def start(self) -> None:
        """Begin a new stream."""
        self._runtime.reset(0)

    def step(self, mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64) -> Arrays:
        """See `nemostream.verify.stages.InnerStages.step`."""
        encoded, _ = self._runtime.encode([0], mel, mel_lengths, prompt_ids, att_context)
        frames = encoded.shape[1]
        return {stage: _frames_first(array, frames) for stage, array in self._runtime.seen.items()}


class _OpenedRuntime(OnnxRuntime):
    """The runtime, which lets a second session with more outputs see what it feeds to the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, threads=1, verify=False)
        self._stages, self._opened = _open(folder / graphs.ENCODER, self.config)
        self._given = {value.name for value in self._opened.get_inputs()}
        self.seen: Arrays = {}

    def _run_encoder(self, binding: Any, inputs: Bindings, outputs: Bindings) -> None:
        super()._run_encoder(binding, inputs, outputs)  # the past is still that of before the call
        feeds = dict(inputs)
        for history, names in zip(self._histories, self._history_inputs(), strict=True):
            feeds |= dict(zip(names, history.tables(), strict=True))
        names = list(self._stages.values())
        try:
            values = self._opened.run(names, {name: feeds[name] for name in self._given})
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise BackendError(f"ONNX Runtime could not run the encoder: {error}") from error
        self.seen = dict(zip(self._stages, values, strict=True))


def _frames_first(array: NDArray[Any], frames: int) -> NDArray[Any]:
    """[1, parts, N, width], [1, N, D] or [N, D] -> [1, N, D]."""
    if array.ndim == 4:
        array = array.transpose(0, 2, 1, 3)
    return array.reshape(1, frames, -1)


def _open(path: Path, config: ModelConfig) -> tuple[dict[str, str], Any]:
    """Return stage -> value name, and a session that gives these values."""
    onnx = optional_module("onnx", "export", "Looking inside an ONNX bundle")
    model = onnx.load(str(path), load_external_data=False)
    stages = dict(_named_outputs(config)) | dict(_stream_values(model.graph, config))
    present = {value.name for value in model.graph.output}
    for name in sorted(set(stages.values()) - present):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    options.add_session_config_entry(  # so that weights beside the graph are found from memory
        "session.model_external_initializers_file_folder_path", str(path.parent)
    )
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise BackendError(f"ONNX Runtime could not load {path} with its inner values: {error}") from error
    return stages, session


def _named_outputs(config: ModelConfig) -> Iterator[tuple[str, str]]:
    for kind, stage in _KIND_STAGES.items():
        for layer, name in enumerate(graphs.layer_outputs(kind, config.num_layers)):
            yield f"layers.{layer}.{stage}", name
    yield PROJECTION, "encoded"


def _stream_values(graph: Any, config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield stage and value name; nothing of the layers if the graph has not six norms in each."""
    norms = [node for node in graph.node if node.op_type == "LayerNormalization"]
    if len(norms) == len(_NORM_INPUTS) * config.num_layers:
        yield PRE_ENCODE, norms[0].input[0]
        for index, node in enumerate(norms):
            layer, place = divmod(index, len(_NORM_INPUTS))
            if (stage := _NORM_INPUTS[place]) is not None:
                yield f"layers.{layer}.{stage}", node.input[0]
            if place == len(_NORM_INPUTS) - 1:
                yield f"layers.{layer}", node.output[0]
    fused = [node for node in graph.node if any(_PROMPT_WEIGHTS in name for name in node.input)]
    if fused and config.has_prompt:
        yield PROMPT, fused[-1].output[0]  # the last is the one that adds the bias
