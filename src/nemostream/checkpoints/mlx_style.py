"""Read and write the folder of the public MLX build.

* ``encoder.safetensors``: encoder, prompt_projector and encoder_projector under their canonical names and in
  torch's layout (642 tensors at full size);
* ``decoder.safetensors`` (ours), or ``decoder.onnx`` and ``joiner.onnx`` (the public build): the rest; what
  `nemostream.export.mlx` writes has both;
* ``tokens.txt``: the pieces; ``melfilters.f32``: the mel filterbank [num_mel_bins, 257], raw little-endian;
* ``manifest.json`` (ours), a bundle's manifest: if it is there, all files have to be as it says;
* ``nemotron_onnx_config.json``, which has, in the public build and here: ``model_type``, ``blank_token_id``,
  ``default_prompt_id``, ``max_symbols_per_step``, ``num_prompts``, ``prompt_dictionary``, ``features``
  (samples and Hz), ``encoder`` (with ``left_context_frames``), ``chunk_ms_to_lookahead`` and ``cache_shapes``
  (a batch of one). Ours adds ``model``, which is `ModelConfig.to_dict` and decides when it is there;
  otherwise the configuration follows from the other keys and the shapes of the tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nemostream.checkpoints.bundle import MANIFEST, read_manifest
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.files import (
    StoredDtype,
    read_json,
    read_safetensors,
    reading_config,
    write_json,
    write_safetensors,
)
from nemostream.checkpoints.onnx_decoder import DECODER, JOINER, read_onnx_decoder
from nemostream.config import FRAME_MS, MEL_HOP_SAMPLES, SAMPLE_RATE, SUBSAMPLING_FACTOR, ModelConfig
from nemostream.errors import CheckpointError
from nemostream.text.tokenizer import Tokenizer

ENCODER = "encoder.safetensors"
DECODER_WEIGHTS = "decoder.safetensors"
CONFIG = "nemotron_onnx_config.json"
TOKENS = "tokens.txt"
MEL_FILTERS = "melfilters.f32"

_DECODER_PREFIXES = ("decoder.", "joint.")
_DEFAULT_LOOKAHEAD = {"nemotron3_5_asr": 3, "nemotron_asr_streaming": 13}  # encoder frames


def load_mlx_style(folder: Path) -> Checkpoint:
    """Read a folder of the MLX layout.

    Raises:
        CheckpointError: if a file is missing, damaged, or not the one in the manifest, or the weights do not
            fit the configuration.
        BackendError: if the decoder is ONNX and onnx is not installed.
    """
    if (folder / MANIFEST).is_file():
        read_manifest(folder)
    tensors = read_safetensors(folder / ENCODER)
    if (folder / DECODER_WEIGHTS).exists():
        tensors |= read_safetensors(folder / DECODER_WEIGHTS)
    elif (folder / DECODER).exists() and (folder / JOINER).exists():
        tensors |= read_onnx_decoder(folder)
    else:
        raise CheckpointError(
            f"{folder} has neither {DECODER_WEIGHTS} nor both {DECODER} and {JOINER}; fetch the decoder too."
        )
    content = read_json(folder / CONFIG)
    if "model" in content:
        with reading_config(folder / CONFIG):
            config = ModelConfig.from_dict(content["model"])
    else:
        config = _infer_config(content, tensors, folder / CONFIG)
    tokenizer = Tokenizer.from_tokens_txt(folder / TOKENS, config.vocab_size)
    return Checkpoint(config, tensors, tokenizer, str(folder), "mlx")


def save_mlx_style(checkpoint: Checkpoint, folder: Path, dtype: StoredDtype = "float16") -> None:
    """Write a folder of the MLX layout, encoder and decoder both in ``dtype``.

    Raises:
        CheckpointError: if a weight is too large for ``dtype``, or a piece does not fit ``tokens.txt``.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    folder.mkdir(parents=True, exist_ok=True)
    encoder = {name: array for name, array in tensors.items() if not name.startswith(_DECODER_PREFIXES)}
    decoder = {name: array for name, array in tensors.items() if name.startswith(_DECODER_PREFIXES)}
    write_safetensors(folder / ENCODER, encoder, dtype)
    write_safetensors(folder / DECODER_WEIGHTS, decoder, dtype)
    checkpoint.tokenizer.save_tokens_txt(folder / TOKENS)
    mel = importlib.import_module("nemostream.features.mel")
    (folder / MEL_FILTERS).write_bytes(np.asarray(mel.mel_filterbank(config.num_mel_bins), "<f4").tobytes())
    write_json(folder / CONFIG, _config_json(config))


def lossless_dtype(tensors: Mapping[str, npt.NDArray[Any]]) -> StoredDtype:
    """Return the smallest dtype that keeps every bit: bfloat16 comes out of a file as float32."""
    if all(array.dtype == np.float16 for array in tensors.values()):
        return "float16"
    if all(
        array.dtype == np.float32 and not np.any(np.ascontiguousarray(array).view(np.uint32) & 0xFFFF)
        for array in tensors.values()
    ):
        return "bfloat16"
    return "float32"


def cache_shapes(config: ModelConfig) -> dict[str, list[int]]:
    """Return the streaming state of one stream: name -> shape, in the public build's names and order.

    Keys and values of the left context, the last input frame of each strided convolution (after its frequency
    padding), and the last inputs of each depthwise convolution.
    """
    left = config.default_att_context[0]
    layers = range(config.num_layers)
    attention = [1, config.num_heads, left, config.head_size]
    shapes = {f"{kind}_cache_{layer}": attention for kind in "kv" for layer in layers}
    bins, channels = config.num_mel_bins, 1
    for stage in range(3):
        shapes[f"conv2d_cache_{stage}"] = [1, channels, 1, bins + 3]  # 2 before and 1 after
        bins, channels = bins // 2 + 1, config.subsampling_channels
    history = [1, config.hidden_size, config.conv_kernel_size - 1]
    return shapes | {f"conv1d_cache_{layer}": history for layer in layers}


def _config_json(config: ModelConfig) -> dict[str, Any]:
    prompt: dict[str, Any] = {}
    if config.has_prompt:
        language = config.default_language or next(iter(config.prompts))
        prompt = {
            "num_prompts": config.num_prompts,
            "default_prompt_id": config.prompts[language],
            "prompt_dictionary": dict(config.prompts),
        }
    return {
        "model_type": "nemotron3_5_asr" if prompt else "nemotron_asr_streaming",
        "vocab_size": config.vocab_size + 1,
        "blank_token_id": config.blank_id,
        "decoder_hidden_size": config.predictor_hidden_size,
        "num_decoder_layers": config.predictor_layers,
        "max_symbols_per_step": config.max_symbols,
        **prompt,
        "encoder": {
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "subsampling_factor": SUBSAMPLING_FACTOR,
            "left_context_frames": config.default_att_context[0],
            "frame_ms": FRAME_MS,
        },
        "features": {
            "sampling_rate": SAMPLE_RATE,
            "n_fft": 512,
            "win_length": 400,
            "hop_length": MEL_HOP_SAMPLES,
            "n_mels": config.num_mel_bins,
            "preemphasis": config.preemphasis,
            "log_zero_guard": 2.0**-24,
        },
        "chunk_ms_to_lookahead": {
            str((right + 1) * FRAME_MS): right for _, right in config.att_context_sizes
        },
        "cache_shapes": cache_shapes(config),
        "model": config.to_dict(),
    }


def _infer_config(
    content: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]], path: Path
) -> ModelConfig:
    """Return the configuration of a folder without a ``model`` section, by way of the Hugging Face keys."""

    def sides(name: str, axes: int) -> tuple[int, ...]:
        shape = tensors[name].shape
        if len(shape) != axes:
            raise CheckpointError(f"{name} has shape {list(shape)}; {axes} axes were expected.")
        return shape

    def layers(prefix: str) -> int:
        return sum(name.startswith(prefix) for name in tensors)

    try:
        width = sides("encoder.subsampling.linear.bias", 1)[0]
        classes, hidden = sides("decoder.embedding.weight", 2)
        features, encoder = content["features"], content["encoder"]
        model_type = str(content["model_type"])
        config = {
            **content,
            "vocab_size": classes,
            "blank_token_id": classes - 1,
            "decoder_hidden_size": hidden,
            "num_decoder_layers": layers("decoder.lstm.weight_hh_l"),
            "prompt_intermediate_size": len(tensors.get("prompt_projector.linear_1.bias", ())),
            "encoder_config": {
                "attention_bias": False,
                "convolution_bias": False,
                "scale_input": False,
                "subsampling_factor": encoder["subsampling_factor"],
                "sliding_window": int(encoder["left_context_frames"]) + 1,
                "default_num_lookahead_tokens": _DEFAULT_LOOKAHEAD.get(model_type, 0),
                "hidden_size": width,
                "num_hidden_layers": layers("encoder.layers.") // layers("encoder.layers.0."),
                "num_attention_heads": sides("encoder.layers.0.self_attn.bias_u", 2)[0],
                "intermediate_size": sides("encoder.layers.0.feed_forward1.linear1.weight", 2)[0],
                "subsampling_conv_channels": sides("encoder.subsampling.conv_in.bias", 1)[0],
                "conv_kernel_size": sides("encoder.layers.0.conv.depthwise_conv.weight", 3)[2],
                "num_mel_bins": int(features["n_mels"]),
            },
        }
        processor = {
            "prompt_dictionary": content.get("prompt_dictionary"),
            "feature_extractor": {"preemphasis": features.get("preemphasis", 0.97)},
        }
        return ModelConfig.from_huggingface(config, processor)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path} has no 'model' section, and the configuration cannot be told without {error}; "
            "write the folder again from the original checkpoint."
        ) from error
