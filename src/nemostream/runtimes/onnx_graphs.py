"""Names in the three graphs of an ONNX bundle: what `nemostream.export.onnx` writes and `OnnxRuntime` feeds.

`encoder.onnx`, for B rows of N new frames with P frames of past:

    in   mel [B, 8 N, F], mel_lengths [B], att_context [B, 2], frames [B] (so far), prompt_ids [B] if the
         model has a prompt; cache_mel, cache_first, cache_second (the stem); for each layer i
         cache_keys_i [B, P, D], cache_values_i [B, P, D], cache_gated_i [B, kernel - 1, D]
    out  encoded [B, N, J], lengths [B]; new_mel, new_first, new_second; for each layer i new_keys_i,
         new_values_i, new_gated_i [B, N, D]: the new frames alone, so that no cache is copied by the graph

`predictor.onnx`: tokens [B], h, c [layers, B, H] -> predicted [B, J], new_h, new_c.
`joint.onnx`: encoded [B, W, J], predicted [B, J] -> tokens [B, W], logits [B, W, V + 1].

Floats are float32, whole numbers int64.
"""

from __future__ import annotations

ENCODER, PREDICTOR, JOINT = "encoder.onnx", "predictor.onnx", "joint.onnx"
GRAPHS = (ENCODER, PREDICTOR, JOINT)
DATA_SUFFIX = ".data"  # of the file beside a graph that holds the weights of a large model

STEM = ("mel", "first", "second")  # in the order of `SubsamplingState`
KINDS = ("keys", "values", "gated")  # in the order of `LayerPast`


def stem_inputs() -> list[str]:
    """Names of the stem's state that goes in."""
    return [f"cache_{name}" for name in STEM]


def stem_outputs() -> list[str]:
    """Names of the stem's state that comes out."""
    return [f"new_{name}" for name in STEM]


def layer_inputs(kind: str, layers: int) -> list[str]:
    """Names of the past of one kind, layer by layer."""
    return [f"cache_{kind}_{index}" for index in range(layers)]


def layer_outputs(kind: str, layers: int) -> list[str]:
    """Names of the new frames of one kind, layer by layer."""
    return [f"new_{kind}_{index}" for index in range(layers)]
