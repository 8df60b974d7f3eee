"""Names in the three graphs of an ONNX bundle: what `nemostream.export.onnx` writes and `OnnxRuntime` feeds.

`encoder.onnx`, for B rows of N new frames with P frames of past and H heads of size d:

    in   mel [B, 8 N, F], mel_lengths [B], att_context [B, 2], frames [B] (so far), prompt_ids [B] if the
         model has a prompt; cache_mel, cache_first, cache_second (the stem); for each layer i the memory of
         all streams, memory_keys_i [M, d], memory_values_i [M, d], memory_gated_i [L, D], and the rows in it
         that belong to the call, oldest first: past_rows [B, H, P], gated_rows [B, 1, kernel - 1]
    out  encoded [B, N, J], lengths [B]; new_mel, new_first, new_second; for each layer i the new frames
         alone: new_keys_i, new_values_i [B, H, N, d], new_gated_i [B, 1, N, D]

Looking rows up in memory finds the streams, puts a ring into order and separates the heads, all in one copy
that stays in the processor's cache; nothing else is copied per step but the new frames.

`predictor.onnx`: tokens [B], h, c [layers, B, H] -> predicted [B, J], new_h, new_c.
`joint.onnx`: encoded [B, W, J], predicted [B, J] -> tokens [B, W], logits [B, W, V + 1].

Floats are float32, except that memory and new frames may be float16; whole numbers are int64.
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
    """Names of the memory of one kind, layer by layer."""
    return [f"memory_{kind}_{index}" for index in range(layers)]


def layer_outputs(kind: str, layers: int) -> list[str]:
    """Names of the new frames of one kind, layer by layer."""
    return [f"new_{kind}_{index}" for index in range(layers)]
