"""How the encoder's weights are stored in a CoreML bundle."""

from __future__ import annotations

from typing import Any, Literal, get_args

from nemostream.checkpoints.files import optional_module

Weights = Literal["fp16", "palette8", "palette8-kmeans", "palette6", "int8"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)

_SMALLEST = 2048  # values; smaller tensors, which are biases and norms, stay as they are
_SMALLEST_KMEANS = 10_000  # coremltools clusters these by itself; smaller ones would need scikit-learn


def compress(model: Any, weights: Weights) -> Any:
    """Compress the weights of a converted model (`coremltools.models.MLModel`).

    - "palette8", "palette6": a table of 256 or 64 evenly spaced values per tensor;
    - "palette8-kmeans": a table of 256 values that fit the tensor's own best;
    - "int8": linear, symmetric, one scale for each output channel.

    Only what ``linear`` and ``conv`` multiply with is compressed. The position tables are constants of a
    ``matmul`` and stay fp16: they are activations, computed ahead.
    """
    if weights == "fp16":
        return model
    optimize = optional_module("coremltools.optimize.coreml", "coreml", "Converting to CoreML")
    if weights == "int8":
        how = optimize.OpLinearQuantizerConfig(
            mode="linear_symmetric", dtype="int8", granularity="per_channel", weight_threshold=_SMALLEST
        )
        apply = optimize.linear_quantize_weights
    else:
        kmeans = weights == "palette8-kmeans"
        how = optimize.OpPalettizerConfig(
            mode="kmeans" if kmeans else "uniform",
            nbits=6 if weights == "palette6" else 8,
            weight_threshold=_SMALLEST_KMEANS if kmeans else _SMALLEST,
        )
        apply = optimize.palettize_weights
    (block,) = model.get_spec().mlProgram.functions["main"].block_specializations.values()
    matrices = {
        operation.inputs["weight"].arguments[0].name
        for operation in block.operations
        if operation.type in ("linear", "conv")
    }
    return apply(model, optimize.OptimizationConfig(op_name_configs=dict.fromkeys(matrices, how)))
