"""One configuration from three sources, and its traps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from nemostream.config import ModelConfig
from nemostream.errors import ConfigError, ContextError, LanguageError
from tests.models import small_config

ENCODER = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "subsampling_conv_channels": 256,
    "subsampling_factor": 8,
    "conv_kernel_size": 9,
    "num_mel_bins": 128,
    "sliding_window": 57,
    "default_num_lookahead_tokens": 3,
    "attention_bias": False,
    "convolution_bias": False,
    "scale_input": False,
}
MULTI = {
    "model_type": "nemotron3_5_asr",
    "encoder_config": ENCODER,
    "vocab_size": 13088,
    "blank_token_id": 13087,
    "decoder_hidden_size": 640,
    "num_decoder_layers": 2,
    "num_prompts": 128,
    "prompt_intermediate_size": 2048,
    "default_prompt_id": 101,
}


def test_multilingual_model_from_huggingface() -> None:
    config = ModelConfig.from_huggingface(MULTI)
    assert config.att_context_sizes == ((56, 3), (56, 0), (56, 6), (56, 13))
    assert config.blank_id == config.vocab_size == 13087
    assert config.default_language == "auto"
    assert config.prompt_id(None) == config.prompt_id("auto") == 101
    assert config.prompt_id("de-DE") == config.prompt_id("de_de") == 9
    assert config.subsampled_mel_bins() == 17


def test_english_model_from_huggingface() -> None:
    encoder = ENCODER | {"sliding_window": 71, "default_num_lookahead_tokens": 13}
    values = {"model_type": "nemotron_asr_streaming", "encoder_config": encoder, "vocab_size": 1025}
    config = ModelConfig.from_huggingface(MULTI | values | {"blank_token_id": 1024})
    assert config.att_context_sizes == ((70, 13), (70, 6), (70, 1), (70, 0))
    assert not config.has_prompt
    assert config.prompt_id("en-US") == config.prompt_id(None) == 0
    with pytest.raises(LanguageError, match="English only"):
        config.prompt_id("de-DE")


def test_processor_file_wins() -> None:
    processor = {
        "supported_num_lookahead_tokens": [0, 3],
        "prompt_dictionary": {"xx": 5, "auto": 101},
        "feature_extractor": {"preemphasis": None},
    }
    config = ModelConfig.from_huggingface(MULTI, processor)
    assert config.att_context_sizes == ((56, 3), (56, 0))
    assert config.prompt_id("xx") == 5
    assert config.preemphasis == 0.0


def test_nemo_and_huggingface_agree(golden: Path) -> None:
    from nemostream.checkpoints import load_checkpoint

    for name in ("multi", "en"):
        nemo = load_checkpoint(golden / f"{name}.nemo").config
        folder = ModelConfig.from_huggingface(json.loads((golden / f"{name}_hf" / "config.json").read_text()))
        assert dataclasses.replace(nemo, prompts={}, default_language=None) == dataclasses.replace(
            folder, prompts={}, default_language=None
        )


def test_manifest_round_trip() -> None:
    config = small_config()
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ConfigError, match="Unknown configuration key 'colour'"):
        ModelConfig.from_dict(config.to_dict() | {"colour": 1})
    values = config.to_dict()
    del values["hidden_size"]
    with pytest.raises(ConfigError, match="lacks 'hidden_size'"):
        ModelConfig.from_dict(values)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("encoder_config", "attention_bias", True),
        ("encoder_config", "scale_input", True),
        ("encoder_config", "subsampling_factor", 4),
        (None, "model_type", "whisper"),
        (None, "vocab_size", 99),
    ],
)
def test_what_is_not_of_this_family_is_refused(section: str | None, key: str, value: object) -> None:
    values = yaml.safe_load(yaml.safe_dump(MULTI))
    (values[section] if section else values)[key] = value
    with pytest.raises(ConfigError, match=key if key != "vocab_size" else "blank"):
        ModelConfig.from_huggingface(values)


def test_latency_chooses_the_context() -> None:
    config = small_config()
    assert config.context_for_latency(320) == (56, 3)
    assert config.context_for_latency(1120) == (56, 13)
    english = dataclasses.replace(config, att_context_sizes=((70, 13), (70, 0)))
    with pytest.warns(UserWarning, match="not trained"):
        assert english.context_for_latency(320) == (68, 3)
    with pytest.raises(ContextError, match="80"):
        config.context_for_latency(100)
    with pytest.raises(ContextError, match=r"multiple of right \+ 1"):
        config.resolve_att_context((70, 3))


def test_unknown_language_lists_the_valid_ones() -> None:
    with pytest.raises(LanguageError, match="auto, de-DE, en-US"):
        small_config().prompt_id("fr-FR")
