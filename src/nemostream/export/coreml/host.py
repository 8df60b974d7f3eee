"""What a host needs beside the graphs: metadata, pieces, ``config.json``, and the decoder's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nemostream.checkpoints.files import write_json
from nemostream.config import MEL_HOP_SAMPLES, SAMPLE_RATE, ModelConfig
from nemostream.export.coreai.host import host_metadata
from nemostream.features.mel import FFT_SIZE, WINDOW_SAMPLES
from nemostream.framing import UNIFORM_HISTORY
from nemostream.model.network import Network
from nemostream.runtimes import coreml_contract
from nemostream.runtimes.coreml_contract import Contract, Value
from nemostream.text.tokenizer import Tokenizer

_WEIGHTS_FILE, _WEIGHTS_INDEX = "weights.bin", "weights_index.json"


def write_metadata(folder: Path, config: ModelConfig, tokenizer: Tokenizer, contract: Contract) -> list[str]:
    """Write ``metadata.json`` (shapes, prompts) and ``tokenizer.json`` (id -> piece); returns the names."""
    metadata = host_metadata(config, tokenizer, contract.frames)
    metadata["shard_layers"] = [len(layers) for layers in coreml_contract.shard_layers(config.num_layers)]
    metadata["models"] = _specs(contract)
    write_json(folder / coreml_contract.METADATA, metadata)
    pieces = {str(index): piece for index, piece in enumerate(tokenizer.pieces)}
    write_json(folder / coreml_contract.TOKENIZER, pieces)
    return [coreml_contract.METADATA, coreml_contract.TOKENIZER]


def write_native_weights(folder: Path, network: Network) -> list[str]:
    """Write the encoder's projection and the rest of the decoder, for hosts that decode by themselves.

    ``weights.bin`` is little-endian fp16; ``weights_index.json`` gives each tensor's name (as in
    the checkpoint), shape, dtype and place in bytes. Returns the names of both.
    """
    place = folder / coreml_contract.NATIVE_WEIGHTS
    place.mkdir(parents=True)
    index, offset = {}, 0
    with (place / _WEIGHTS_FILE).open("wb") as file:
        for prefix in ("encoder_projector", "decoder", "joint"):
            for name, tensor in network.get_submodule(prefix).state_dict(prefix=f"{prefix}.").items():
                content = tensor.to(torch.float16).numpy().astype("<f2").tobytes()
                index[name] = {
                    "dtype": "float16",
                    "shape": list(tensor.shape),
                    "offset": offset,
                    "bytes": len(content),
                }
                offset += file.write(content)
    write_json(place / _WEIGHTS_INDEX, index)
    return [f"{coreml_contract.NATIVE_WEIGHTS}/{name}" for name in (_WEIGHTS_FILE, _WEIGHTS_INDEX)]


def write_config(folder: Path, config: ModelConfig, contract: Contract, weights: str) -> list[str]:
    """Write ``config.json``: inputs and outputs, the streaming protocol, the front end; returns its name."""
    left, right = contract.att_context
    content = {
        "model": {
            "layers": config.num_layers,
            "dimension": config.hidden_size,
            "att_context_size": [left, right],
            "encoder_weights": weights,
            "compute_precision": "float16",
        },
        "preprocessing": {
            "sample_rate": SAMPLE_RATE,
            "sample_format": "S16_LE",
            "preemphasis": config.preemphasis,
            "n_fft": FFT_SIZE,
            "hop_length": MEL_HOP_SAMPLES,
            "win_length": WINDOW_SAMPLES,
            "window": "hann",
            "window_periodic": False,
            "center": True,
            "pad_mode": "constant",
            "n_mels": config.num_mel_bins,
            "mel_norm": "slaney",
            "mel_scale": "slaney",
            "log": "natural",
            "log_guard": 2.0**-24,
            "normalize": None,
            "mel_layout": "band-major [n_mels, n_frames]",
        },
        "streaming": {
            "chunk_mel_frames": contract.chunk_mel_frames,
            "pre_encode_cache_mel_frames": UNIFORM_HISTORY,
            "total_mel_frames": contract.window_mel_frames,
            "encoder_frames": contract.frames,
            "shift_mel_frames": contract.chunk_mel_frames,
            "first_pre_encode_cache": "zeros",
            "initial_caches": "zeros",
            "cache_feedback": {
                "encoder": dict(contract.graphs["encoder"].state),
                "decoder": {"input_states_1": "output_states_1", "input_states_2": "output_states_2"},
            },
            "feedback_conversion": "float16 outputs become float32 inputs",
            "output_strides": "an output may be padded; copy it by its strides, not as one block of memory",
            "end_of_stream": "pad the last window with zeros and give its real mel frames as length",
        },
        "decoding": {
            "kind": "rnnt greedy",
            "blank_id": config.blank_id,
            "vocab_size": config.vocab_size + 1,
            "max_symbols_per_frame": config.max_symbols,
            "prediction_layers": config.predictor_layers,
            "prediction_hidden": config.predictor_hidden_size,
            "first_token": config.blank_id,
            "on_blank": "next frame, and the states of before this call",
            "on_token": "emit it, keep the new states, same frame again",
        },
        "prompt_dictionary": dict(config.prompts),
        "models": _specs(contract),
        "profiling": None,  # of the Neural Engine: measured on a Mac only
    }
    write_json(folder / coreml_contract.CONFIG, content)
    return [coreml_contract.CONFIG]


def _specs(contract: Contract) -> dict[str, Any]:
    return {
        graph.name: {
            "file": graph.path,
            "inputs": [_spec(value) for value in graph.inputs],
            "outputs": [_spec(value) for value in graph.outputs],
        }
        for graph in contract.graphs.values()
    }


def _spec(value: Value) -> dict[str, object]:
    return {"name": value.name, "shape": list(value.shape), "dtype": value.dtype}
