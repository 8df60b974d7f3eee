"""Export to ONNX: three graphs traced from the reference network, see `nemostream.runtimes.onnx_graphs`.

The tracing (TorchScript-based) exporter is used, since it takes seconds where the ``torch.export``-based one
takes minutes for 24 layers with dynamic shapes. It traces the structure alone; the weights are put in
afterwards, which has no 2 GB limit, and what depends on weights alone (transposes, LSTM gate order) is
computed then, so that every matrix product has a plain initialiser.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from nemostream.checkpoints.bundle import MANIFEST, TOKENS, Manifest
from nemostream.checkpoints.files import optional_module
from nemostream.config import SUBSAMPLING_FACTOR
from nemostream.errors import BackendError, CheckpointError
from nemostream.export.manifest import write_manifest
from nemostream.model.conformer import LayerPast
from nemostream.model.network import Network
from nemostream.model.subsampling import SubsamplingState
from nemostream.runtimes import onnx_graphs as graphs
from nemostream.text.tokenizer import Tokenizer

Weights = Literal["fp32", "fp16"]

OPSET = 18
SINGLE_FILE_BYTES = 1 << 30  # larger graphs get a data file; protobuf itself ends at 2 GiB
FP16_MAX = 65504.0
_POSITIONAL = ("bias_u", "bias_v")  # matrices by shape, but added, not multiplied: they stay fp32
_MATRIX_INPUTS = {"MatMul": (1,), "Gemm": (1,), "Conv": (1,), "Gather": (0,), "LSTM": (1, 2)}
_PACKAGES = ("onnx", "onnx_ir", "onnxscript.optimizer")
_NO_LIMIT = 1 << 62  # bytes of constants that the optimiser may fold

Axes = dict[str, dict[int, str]]


def export_onnx(
    network: Network,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    source: str,
    source_revision: str | None = None,
    weights: Weights = "fp32",
    max_frames: int = 112,
) -> Manifest:
    """Write a bundle that `nemostream.runtimes.onnx.OnnxRuntime` loads.

    Args:
        network: the model, on the CPU in fp32.
        tokenizer: its pieces.
        folder: where to write; made if it does not exist. An earlier bundle there is replaced.
        source: path or id of the checkpoint, for the manifest.
        source_revision: its commit on the hub.
        weights: "fp32", or "fp16" to store matrices in half the bytes; computation is in fp32 either way.
        max_frames: most encoder frames that one call may produce.

    Raises:
        BackendError: if a package for exporting is missing, or an argument makes no sense.
        CheckpointError: if a weight is too large for fp16.
    """
    config = network.config
    largest = max(right for _, right in config.att_context_sizes) + 1
    if max_frames < largest:
        raise BackendError(
            f"max_frames is {max_frames}; the model needs chunks of {largest} frames at least."
        )
    if weights not in get_args(Weights):
        raise BackendError(
            f"Weights cannot be stored as {weights!r}; use one of {', '.join(get_args(Weights))}."
        )
    for package in _PACKAGES:
        _package(package)
    if weights == "fp16":
        network = half_precision_weights(network)
    training = network.training
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    left = max(1, *(left for left, _ in config.att_context_sizes))
    written = [TOKENS]
    tokenizer.save_tokens_txt(folder / TOKENS)
    with torch.no_grad():
        written += _export_encoder(network, left, max_frames, folder, weights)
        written += _export_predictor(network, folder, weights)
        written += _export_joint(network, folder, weights)
    network.train(training)
    return write_manifest(
        folder,
        config=config,
        runtime="onnx",
        framing="native",
        max_frames=max_frames,
        weights=weights,
        source=source,
        source_revision=source_revision,
        files=written,
    )


def half_precision_weights(network: Network) -> Network:
    """Return a copy whose matrices, kernels and embeddings are rounded to fp16 (and are still fp32 tensors).

    Raises:
        CheckpointError: if a weight is too large for fp16.
    """
    rounded = copy.deepcopy(network)
    for name, parameter in rounded.named_parameters():
        if parameter.ndim < 2 or name.endswith(_POSITIONAL):
            continue
        if (peak := float(parameter.detach().abs().max())) > FP16_MAX:
            raise CheckpointError(f"{name} has a value of {peak:g}, too large for fp16; use fp32 weights.")
        parameter.data = parameter.data.half().float()
    return rounded


class _EncoderStep(nn.Module):
    """`Encoder.step`, prompt and projection, with the position tables baked in."""

    def __init__(self, network: Network, left: int, max_frames: int) -> None:
        super().__init__()
        self.network = network
        self.first_distance = left + max_frames  # one more than the distance of the tables' first row
        for index, table in enumerate(network.encoder.position_tables(left, max_frames)):
            self.register_buffer(f"positions_{index}", table.contiguous())

    def forward(
        self,
        mel: Tensor,
        mel_lengths: Tensor,
        att_context: Tensor,
        seen: Tensor,
        stem: Sequence[Tensor],
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        gated: Sequence[Tensor],
        prompt_ids: Tensor,
    ) -> tuple[Tensor, ...]:
        frames, past = mel.shape[1] // SUBSAMPLING_FACTOR, keys[0].shape[1]
        skipped = self.first_distance - past - frames
        tables = [
            getattr(self, f"positions_{index}")[:, skipped : skipped + past + 2 * frames]
            for index in range(len(keys))
        ]
        layers = [LayerPast(*carried) for carried in zip(keys, values, gated, strict=True)]
        x, lengths, new_stem, new = self.network.encoder.step(
            mel, mel_lengths, seen, layers, SubsamplingState(*stem), att_context, tables
        )
        kept = [getattr(layer, kind) for kind in graphs.KINDS for layer in new]
        return (self.network.project(x, prompt_ids), lengths, *new_stem, *kept)


class _PredictorStep(nn.Module):
    """The predictor for one token a row."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.decoder = network.decoder

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        predicted, (new_h, new_c) = self.decoder(tokens[:, None], (h, c))
        return predicted[:, 0], new_h, new_c


class _JointStep(nn.Module):
    """The joint for a window of frames under one predictor output a row."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.joint = network.joint

    def forward(self, encoded: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.joint(encoded, predicted[:, None])
        return logits.argmax(dim=2), logits


def _export_encoder(
    network: Network, left: int, max_frames: int, folder: Path, weights: Weights
) -> list[str]:
    config, encoder = network.config, network.encoder
    layers, batch, frames = config.num_layers, 2, 3  # neither 0 nor 1, which exporters like to take as fixed
    state = encoder.initial_state(batch, left)
    inputs: dict[str, Any] = {
        "mel": torch.zeros(batch, SUBSAMPLING_FACTOR * frames, config.num_mel_bins),
        "mel_lengths": torch.full((batch,), SUBSAMPLING_FACTOR * frames),
        "att_context": torch.tensor([config.default_att_context] * batch),
        "frames": state.frames,
        "stem": list(state.subsampling),
        **{kind: list(getattr(state, kind)) for kind in graphs.KINDS},
        "prompt_ids": torch.zeros(batch, dtype=torch.int64),
    }
    names = ["mel", "mel_lengths", "att_context", "frames", *graphs.stem_inputs()]
    names += [name for kind in graphs.KINDS for name in graphs.layer_inputs(kind, layers)]
    if config.has_prompt:
        names.append("prompt_ids")
    new = [name for kind in graphs.KINDS for name in graphs.layer_outputs(kind, layers)]
    outputs = ["encoded", "lengths", *graphs.stem_outputs(), *new]
    axes: Axes = {name: {0: "batch"} for name in (*names, *outputs)}
    axes["mel"][1] = "rows"
    for name in ("encoded", *new):
        axes[name][1] = "new_frames"
    for kind in ("keys", "values"):
        for name in graphs.layer_inputs(kind, layers):
            axes[name][1] = "past"
    step = _EncoderStep(network, left, max_frames)
    return _export(step, tuple(inputs.values()), names, outputs, axes, folder / graphs.ENCODER, weights)


def _export_predictor(network: Network, folder: Path, weights: Weights) -> list[str]:
    names, outputs = ["tokens", "h", "c"], ["predicted", "new_h", "new_c"]
    state = {1: "batch"}
    axes: Axes = {"tokens": {0: "batch"}, "predicted": {0: "batch"}}
    axes |= dict.fromkeys(("h", "c", "new_h", "new_c"), state)
    arguments = (torch.zeros(2, dtype=torch.int64), *network.initial_predictor_state(2))
    return _export(
        _PredictorStep(network), arguments, names, outputs, axes, folder / graphs.PREDICTOR, weights
    )


def _export_joint(network: Network, folder: Path, weights: Weights) -> list[str]:
    names, outputs = ["encoded", "predicted"], ["tokens", "logits"]
    window = {0: "batch", 1: "window"}
    axes: Axes = {"encoded": window, "predicted": {0: "batch"}, "tokens": window, "logits": window}
    width = network.config.joint_hidden_size
    arguments = (torch.zeros(2, 3, width), torch.zeros(2, width))
    return _export(_JointStep(network), arguments, names, outputs, axes, folder / graphs.JOINT, weights)


def _export(
    module: nn.Module,
    arguments: tuple[Any, ...],
    names: list[str],
    outputs: list[str],
    axes: Axes,
    path: Path,
    weights: Weights,
) -> list[str]:
    """Trace, put the weights in, simplify, write; return the names of the files that were written."""
    onnx, ir, optimizer = (_package(name) for name in _PACKAGES)
    stream: Any = io.BytesIO()  # the annotations of torch know only the exporter that needs a path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated, and that LSTMs may be of fixed batch size
        torch.onnx.export(
            module.eval(),
            arguments,
            stream,
            dynamo=False,
            opset_version=OPSET,
            input_names=names,
            output_names=outputs,
            dynamic_axes=axes,
            export_params=False,
            do_constant_folding=False,
        )
    model = ir.from_proto(onnx.load_from_string(stream.getvalue()))
    _insert_weights(model, module.state_dict(), names, ir)
    _simplify(model, ir, optimizer)
    if weights == "fp16":
        _store_matrices_in_half(model.graph, ir)
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    data = path.name + graphs.DATA_SUFFIX if size > SINGLE_FILE_BYTES else None
    ir.save(model, path, external_data=data)
    return [path.name] if data is None else [path.name, data]


def _insert_weights(model: Any, state: Mapping[str, Tensor], names: list[str], ir: Any) -> None:
    """Turn the inputs that stand for weights into initialisers, and drop what else is not an input."""
    graph = model.graph
    for value in list(graph.inputs):
        if value.name in names:
            continue
        graph.inputs.remove(value)
        if value.name in state:
            array = np.ascontiguousarray(state[value.name].numpy())
            value.const_value = ir.tensor(array, name=value.name)
            graph.register_initializer(value)


def _simplify(model: Any, ir: Any, optimizer: Any) -> None:
    """Compute what depends on constants alone, and compute nothing twice.

    onnxscript's whole ``optimize`` is left aside: its rewrite rules find nothing here and take minutes.
    """
    optimizer.fold_constants(model, input_size_limit=_NO_LIMIT, output_size_limit=_NO_LIMIT)
    passes = _package("onnx_ir.passes.common")
    ir.passes.Sequential(
        passes.IdentityEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
    )(model)


def _store_matrices_in_half(graph: Any, ir: Any) -> None:
    """Store the matrices in fp16, each with a Cast to fp32 that ONNX Runtime computes once, at load."""
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        uses = list(value.uses())
        multiplied = all(use.idx in _MATRIX_INPUTS.get(use.node.op_type, ()) for use in uses)
        if tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2 or not multiplied:
            continue
        half = ir.Value(name=f"{value.name}_fp16", const_value=ir.tensor(tensor.numpy().astype(np.float16)))
        half.shape, half.dtype = value.shape, ir.DataType.FLOAT16
        half.const_value.name = half.name
        cast = ir.node("Cast", [half], {"to": int(ir.DataType.FLOAT)})
        graph.initializers.pop(value.name)
        graph.register_initializer(half)
        for use in uses:
            use.node.replace_input_with(use.idx, cast.outputs[0])
        graph.insert_before(graph[0], cast)


def _clear(folder: Path) -> None:
    """Remove what an earlier export left, so that a bundle is never half old."""
    for name in (MANIFEST, TOKENS, *graphs.GRAPHS, *(graph + graphs.DATA_SUFFIX for graph in graphs.GRAPHS)):
        (folder / name).unlink(missing_ok=True)


def _package(name: str) -> Any:
    return optional_module(name, "export", "Exporting to ONNX")
