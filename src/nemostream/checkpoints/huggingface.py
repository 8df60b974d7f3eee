"""Read and write a Hugging Face model folder, as transformers' two Nemotron classes have it.

``config.json`` and ``model.safetensors`` (or an index and its shards) are needed; ``processor_config.json``
(languages, trained contexts) and ``tokenizer.json`` are used where there are any.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy.typing as npt

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.files import (
    StoredDtype,
    read_json,
    read_safetensors,
    reading_config,
    write_json,
    write_safetensors,
)
from nemostream.config import MEL_HOP_SAMPLES, SAMPLE_RATE, SUBSAMPLING_FACTOR, ModelConfig
from nemostream.errors import CheckpointError
from nemostream.text.tokenizer import Tokenizer

CONFIG = "config.json"
PROCESSOR = "processor_config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load_huggingface(folder: Path) -> Checkpoint:
    """Read a Hugging Face model folder.

    Without a ``tokenizer.json`` the checkpoint gets placeholder pieces ``<0>``, ``<1>`` ..., with a warning.

    Raises:
        CheckpointError: if a file is missing or damaged, or the weights do not fit the configuration.
    """
    processor = folder / PROCESSOR
    contents = read_json(folder / CONFIG), read_json(processor) if processor.exists() else None
    with reading_config(folder / CONFIG):
        config = ModelConfig.from_huggingface(*contents)
    tensors = _read_weights(folder)
    path = folder / TOKENIZER
    if path.exists():
        tokenizer = Tokenizer.from_huggingface(path, config.vocab_size)
    else:
        warnings.warn(
            f"{folder} has no {TOKENIZER}, so the text shows token numbers such as <17>; "
            "add the tokenizer of the original model to see words.",
            stacklevel=2,
        )
        tokenizer = Tokenizer.placeholder(config.vocab_size)
    return Checkpoint(config, tensors, tokenizer, str(folder), "huggingface")


def save_huggingface(checkpoint: Checkpoint, folder: Path, dtype: StoredDtype = "float32") -> None:
    """Write a folder that transformers' ``from_pretrained`` loads strictly and `load_huggingface` reads.

    The ``tokenizer.json`` decodes as the original does; it cannot split text into the original's tokens,
    since that needs the merge scores, which a `Checkpoint` does not carry.

    Raises:
        CheckpointError: if the format cannot express the model: joint and predictor of unequal width, or left
            contexts that differ; or if a weight is too large for ``dtype``.
    """
    config = checkpoint.config
    contents = config_json(config, dtype), _processor_json(config)
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / WEIGHTS, checkpoint.tensors, dtype)
    write_json(folder / CONFIG, contents[0])
    write_json(folder / PROCESSOR, contents[1])
    write_json(
        folder / "generation_config.json", {"decoder_start_token_id": config.blank_id, "pad_token_id": 0}
    )
    write_json(folder / TOKENIZER, _tokenizer_json(checkpoint.tokenizer))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False},
    )


def config_json(config: ModelConfig, dtype: StoredDtype = "float32") -> dict[str, Any]:
    """Return the ``config.json`` of a model; its keys are those of transformers' configuration classes.

    Raises:
        CheckpointError: if the format cannot express the model.
    """
    if config.joint_hidden_size != config.predictor_hidden_size:
        raise CheckpointError(
            f"The joint is {config.joint_hidden_size} wide and the predictor {config.predictor_hidden_size}; "
            "a Hugging Face folder can only hold a model where they are equal."
        )
    left, right = config.default_att_context
    if any(other != left for other, _ in config.att_context_sizes):
        raise CheckpointError(
            f"The contexts {[list(pair) for pair in config.att_context_sizes]} have several left sizes; "
            "a Hugging Face folder holds one, so keep the contexts of one left size."
        )
    encoder = {
        "model_type": "nemotron_asr_streaming_encoder",
        "attention_bias": False,
        "conv_kernel_size": config.conv_kernel_size,
        "convolution_bias": False,
        "default_num_lookahead_tokens": right,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": 5000,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_heads,
        "num_mel_bins": config.num_mel_bins,
        "scale_input": False,
        "sliding_window": left + 1,
        "subsampling_conv_channels": config.subsampling_channels,
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
        "subsampling_factor": SUBSAMPLING_FACTOR,
    }
    prompt = {}
    if config.has_prompt:
        language = config.default_language or next(iter(config.prompts))
        prompt = {
            "default_prompt_id": config.prompts[language],
            "num_prompts": config.num_prompts,
            "prompt_intermediate_size": config.prompt_intermediate_size,
        }
    return {
        "architectures": ["Nemotron3_5AsrForRNNT" if prompt else "NemotronAsrStreamingForRNNT"],
        "model_type": "nemotron3_5_asr" if prompt else "nemotron_asr_streaming",
        "blank_token_id": config.blank_id,
        "decoder_hidden_size": config.predictor_hidden_size,
        "dtype": dtype,
        "encoder_config": encoder,
        "hidden_act": "relu",
        "is_encoder_decoder": True,
        "max_symbols_per_step": config.max_symbols,
        "num_decoder_layers": config.predictor_layers,
        "pad_token_id": 0,
        "vocab_size": config.vocab_size + 1,
        **prompt,
    }


def _processor_json(config: ModelConfig) -> dict[str, Any]:
    rights = [right for _, right in config.att_context_sizes]
    prompt: dict[str, Any] = {}
    if config.has_prompt:
        prompt = {"prompt_dictionary": dict(config.prompts), "num_prompts": config.num_prompts}
    return {
        "processor_class": "Nemotron3_5AsrProcessor" if prompt else "NemotronAsrStreamingProcessor",
        "blank_token": "<blank>",
        "default_num_lookahead_tokens": rights[0],
        "supported_num_lookahead_tokens": rights,
        "feature_extractor": {
            "feature_extractor_type": "NemotronAsrStreamingFeatureExtractor",
            "feature_size": config.num_mel_bins,
            "sampling_rate": SAMPLE_RATE,
            "hop_length": MEL_HOP_SAMPLES,
            "n_fft": 512,
            "win_length": 400,
            "preemphasis": config.preemphasis or None,
        },
        **prompt,
    }


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a Unigram model with the pieces in the order of their ids, and the blank behind them."""
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    ids = [*tokenizer.language_tags, tokenizer.vocab_size]
    named = (*tokenizer.pieces, "<blank>")
    return {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": named[index], **special} for index in ids],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
            ],
        },
        "model": {
            "type": "Unigram",
            "unk_id": tokenizer.pieces.index("<unk>") if "<unk>" in tokenizer.pieces else None,
            "vocab": [[piece, 0.0] for piece in tokenizer.pieces],
        },
    }


def _read_weights(folder: Path) -> dict[str, npt.NDArray[Any]]:
    if (folder / WEIGHTS).exists():
        return read_safetensors(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise CheckpointError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}; fetch the weights too (other formats are not read)."
        )
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise CheckpointError(
            f"{folder / INDEX} has no weight_map of names to files; fetch the checkpoint again."
        )
    tensors: dict[str, npt.NDArray[Any]] = {}
    for shard in sorted(set(shards.values())):
        if Path(shard).name != shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{folder / INDEX} names {shard!r}; a plain .safetensors file name inside the folder "
                "was expected, so do not trust this one."
            )
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder} lacks {shard}, which {INDEX} names; fetch the missing file.")
        content = read_safetensors(folder / shard)
        here = {name for name, where in shards.items() if where == shard}
        if differing := sorted(here ^ content.keys()):
            raise CheckpointError(
                f"{folder / shard} and {INDEX} disagree about {differing[0]} "
                f"({len(differing)} such tensors); fetch both again."
            )
        tensors |= content
    return tensors
