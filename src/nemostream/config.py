"""`ModelConfig`: one frozen description of any model of the Nemotron streaming family.

It is read from a ``.nemo`` YAML (`from_nemo`), a Hugging Face ``config.json`` (`from_huggingface`), or a
bundle manifest (`from_dict`); everything else in the project asks this object and nothing else.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Self

from nemostream.errors import ConfigError, ContextError, LanguageError
from nemostream.text.languages import PUBLISHED_PROMPTS

FRAME_MS = 80  # one encoder frame: 8 mel frames of 10 ms
SUBSAMPLING_FACTOR = 8  # three strided convolutions
MEL_HOP_SAMPLES = 160
SAMPLE_RATE = 16_000

_TRAINED_RIGHT_CONTEXTS = {  # Hugging Face model_type -> trained right contexts, default first
    "nemotron3_5_asr": (3, 0, 6, 13),
    "nemotron_asr_streaming": (13, 6, 1, 0),
}


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions, contexts and vocabulary of one model.

    Attributes:
        hidden_size: width D of the encoder.
        num_layers: conformer layers.
        num_heads: attention heads; ``hidden_size`` is a multiple of it.
        intermediate_size: inner width of a feed-forward module.
        subsampling_channels: channels of the convolutional stem.
        conv_kernel_size: taps of the causal depthwise convolution.
        predictor_hidden_size: width H of the LSTM predictor.
        predictor_layers: LSTM layers.
        joint_hidden_size: width J of the joint network.
        vocab_size: SentencePiece pieces; the blank is one more, with the id ``vocab_size``.
        att_context_sizes: trained (left, right) contexts in encoder frames, the default first.
        num_mel_bins: mel bands.
        preemphasis: coefficient of the first-order high-pass; 0 switches it off.
        max_symbols: most tokens that greedy decoding emits on one encoder frame.
        num_prompts: slots of the language prompt; 0 for a model without one.
        prompt_intermediate_size: inner width of the prompt MLP; 0 without one.
        prompts: language name -> prompt slot.
        default_language: the language that is used when none is asked for; None without a prompt.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    subsampling_channels: int
    conv_kernel_size: int
    predictor_hidden_size: int
    predictor_layers: int
    joint_hidden_size: int
    vocab_size: int
    att_context_sizes: tuple[tuple[int, int], ...]
    num_mel_bins: int = 128
    preemphasis: float = 0.97
    max_symbols: int = 10
    num_prompts: int = 0
    prompt_intermediate_size: int = 0
    prompts: Mapping[str, int] = field(default_factory=dict)
    default_language: str | None = None

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            optional = spec.name in ("num_prompts", "prompt_intermediate_size")
            if spec.type == "int" and (type(value) is not int or value < (0 if optional else 1)):
                raise ConfigError(f"{spec.name} is {value!r}; a positive whole number was expected.")
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}."
            )
        if not self.att_context_sizes:
            raise ConfigError("att_context_sizes is empty; at least one (left, right) pair was expected.")
        for left, right in self.att_context_sizes:
            check_att_context(left, right)
        slots = [slot for slot in self.prompts.values() if not 0 <= slot < self.num_prompts]
        if slots:
            raise ConfigError(f"prompt slot {slots[0]} is outside the {self.num_prompts} slots of the model.")
        if self.default_language is not None and self.default_language not in self.prompts:
            raise ConfigError(f"default_language {self.default_language!r} is not in the prompt table.")

    @property
    def blank_id(self) -> int:
        """Token id of the blank: one past the last piece."""
        return self.vocab_size

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_heads

    @property
    def has_prompt(self) -> bool:
        """True if the model takes a language prompt."""
        return self.num_prompts > 0

    @property
    def default_att_context(self) -> tuple[int, int]:
        """The (left, right) context used when none is asked for."""
        return self.att_context_sizes[0]

    def subsampled_mel_bins(self) -> int:
        """Frequency bins that are left after the stem's three strided convolutions."""
        bins = self.num_mel_bins
        for _ in range(3):
            bins = bins // 2 + 1
        return bins

    def resolve_att_context(self, requested: Sequence[int] | None) -> tuple[int, int]:
        """Return the (left, right) context to run with.

        A context that the model was not trained with is allowed, with a warning.

        Raises:
            ContextError: if it is not two whole numbers >= 0 with left a multiple of right + 1.
        """
        if requested is None:
            return self.default_att_context
        if len(requested) != 2:
            raise ContextError(f"att_context_size {list(requested)} was given; [left, right] was expected.")
        left, right = (int(value) for value in requested)
        check_att_context(left, right)
        if (left, right) not in self.att_context_sizes:
            trained = ", ".join(f"[{a}, {b}]" for a, b in self.att_context_sizes)
            warnings.warn(
                f"The model was not trained with att_context_size [{left}, {right}] (trained: {trained}); "
                "accuracy may suffer.",
                stacklevel=2,
            )
        return left, right

    def context_for_latency(self, milliseconds: int) -> tuple[int, int]:
        """Return the (left, right) context whose latency, (right + 1) * 80 ms, is ``milliseconds``.

        Raises:
            ContextError: if no whole number of frames gives that latency.
        """
        if not isinstance(milliseconds, Real) or milliseconds <= 0 or milliseconds % FRAME_MS:
            raise ContextError(
                f"A latency of {milliseconds!r} ms is not a positive multiple of {FRAME_MS} ms; "
                "use one of 80, 160, 320, 560 or 1120."
            )
        right = milliseconds // FRAME_MS - 1
        for context in self.att_context_sizes:
            if context[1] == right:
                return context
        left = self.default_att_context[0]
        return self.resolve_att_context((left - left % (right + 1), right))

    def prompt_id(self, language: str | None) -> int:
        """Return the prompt slot of ``language`` (None means the default one).

        A model without a prompt returns 0, and accepts only None, "en", "en-US" and "auto".

        Raises:
            LanguageError: if the model has no such language; the message lists the valid ones.
        """
        if not self.has_prompt:
            if language in (None, "auto", "en", "en-US"):
                return 0
            raise LanguageError(f"This model knows English only, so language {language!r} cannot be used.")
        name = language if language is not None else self.default_language
        if name is None:
            raise LanguageError(f"This model needs a language; choose one of: {self._language_list()}.")
        if name in self.prompts:
            return self.prompts[name]
        folded = {key.lower().replace("_", "-"): slot for key, slot in self.prompts.items()}
        slot = folded.get(name.lower().replace("_", "-")) if isinstance(name, str) else None
        if slot is None:
            raise LanguageError(f"Unknown language {name!r}; the valid ones are: {self._language_list()}.")
        return slot

    def _language_list(self) -> str:
        return ", ".join(sorted(self.prompts))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary that `from_dict` reads back."""
        values = dataclasses.asdict(self)
        values["att_context_sizes"] = [list(pair) for pair in self.att_context_sizes]
        values["prompts"] = dict(self.prompts)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            ConfigError: on an unknown or missing key, or a value that makes no sense.
        """
        known = {spec.name: spec for spec in dataclasses.fields(cls)}
        required = {
            name
            for name, spec in known.items()
            if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        }
        if unknown := set(values) - set(known):
            raise ConfigError(
                f"Unknown configuration key {sorted(unknown)[0]!r}; was it made by a newer version?"
            )
        if missing := required - set(values):
            raise ConfigError(f"The configuration lacks {sorted(missing)[0]!r}.")
        copy = dict(values)
        copy["att_context_sizes"] = tuple((int(a), int(b)) for a, b in values["att_context_sizes"])
        return cls(**copy)

    @classmethod
    def from_nemo(cls, yaml: Mapping[str, Any]) -> Self:
        """Read a ``.nemo`` file's ``model_config.yaml`` (already parsed).

        Raises:
            ConfigError: if the model is not a cache-aware FastConformer RNN-T of this family.
        """
        encoder, decoder, joint = (_section(yaml, name) for name in ("encoder", "decoder", "joint"))
        features = _section(yaml, "preprocessor")
        _expect(encoder, "subsampling", "dw_striding")
        _expect(encoder, "subsampling_factor", SUBSAMPLING_FACTOR)
        _expect(encoder, "causal_downsampling", True)
        _expect(encoder, "self_attention_model", "rel_pos")
        _expect(encoder, "att_context_style", "chunked_limited")
        _expect(encoder, "conv_norm_type", "layer_norm")
        _expect(encoder, "conv_context_size", "causal")
        _expect(encoder, "xscaling", False)
        _expect(encoder, "use_bias", False)
        _expect(features, "sample_rate", SAMPLE_RATE)
        _expect(features, "normalize", "NA")
        _expect(features, "n_fft", 512)
        contexts = encoder["att_context_size"]
        if isinstance(contexts[0], int):
            contexts = [contexts]
        defaults = yaml.get("model_defaults") or {}
        prompts = dict(defaults.get("prompt_dictionary") or {})
        has_prompt = bool(prompts)
        predictor = _section(decoder, "prednet")
        jointnet = _section(joint, "jointnet")
        if jointnet.get("activation") != "relu":
            raise ConfigError(f"The joint uses {jointnet.get('activation')!r}; only 'relu' is supported.")
        hidden = int(encoder["d_model"])
        return cls(
            hidden_size=hidden,
            num_layers=int(encoder["n_layers"]),
            num_heads=int(encoder["n_heads"]),
            intermediate_size=hidden * int(encoder.get("ff_expansion_factor", 4)),
            subsampling_channels=int(encoder["subsampling_conv_channels"]),
            conv_kernel_size=int(encoder["conv_kernel_size"]),
            predictor_hidden_size=int(predictor["pred_hidden"]),
            predictor_layers=int(predictor["pred_rnn_layers"]),
            joint_hidden_size=int(jointnet["joint_hidden"]),
            vocab_size=int(joint["num_classes"]),
            att_context_sizes=tuple((int(a), int(b)) for a, b in contexts),
            num_mel_bins=int(features["features"]),
            # the key is absent from published files, where NeMo's default of 0.97 applies; null means none
            preemphasis=float(features.get("preemph", 0.97) or 0.0),
            max_symbols=_nemo_max_symbols(yaml),
            num_prompts=int(defaults.get("num_prompts", 128)) if has_prompt else 0,
            prompt_intermediate_size=2 * hidden if has_prompt else 0,
            prompts=prompts,
            default_language="auto" if "auto" in prompts else None,
        )

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any], processor: Mapping[str, Any] | None = None) -> Self:
        """Read a Hugging Face ``config.json`` and, if there is one, its ``processor_config.json``.

        Without a processor file the published prompt table and trained contexts of the model type apply.

        Raises:
            ConfigError: if the model type is not one of this family, or a setting is not supported.
        """
        model_type = str(config.get("model_type"))
        if model_type not in _TRAINED_RIGHT_CONTEXTS:
            known = ", ".join(_TRAINED_RIGHT_CONTEXTS)
            raise ConfigError(f"config.json has model_type {model_type!r}; one of {known} was expected.")
        encoder = _section(config, "encoder_config")
        _expect(encoder, "attention_bias", False)
        _expect(encoder, "convolution_bias", False)
        _expect(encoder, "scale_input", False)
        _expect(encoder, "subsampling_factor", SUBSAMPLING_FACTOR)
        processor = processor or {}
        extractor = processor.get("feature_extractor") or {}
        lookaheads = processor.get("supported_num_lookahead_tokens") or _TRAINED_RIGHT_CONTEXTS[model_type]
        default = int(encoder["default_num_lookahead_tokens"])
        rights = [default, *(int(right) for right in lookaheads if int(right) != default)]
        left = int(encoder["sliding_window"]) - 1
        has_prompt = model_type == "nemotron3_5_asr"
        prompts: dict[str, int] = {}
        if has_prompt:
            prompts = dict(processor.get("prompt_dictionary") or PUBLISHED_PROMPTS)
        vocab = int(config["blank_token_id"])
        if int(config["vocab_size"]) != vocab + 1:
            raise ConfigError(
                f"vocab_size {config['vocab_size']} and blank_token_id {vocab} disagree; "
                "the blank should be the last id."
            )
        default_slot = int(config.get("default_prompt_id", 101))
        hidden = int(config["decoder_hidden_size"])
        preemphasis = extractor.get("preemphasis", 0.97)
        return cls(
            hidden_size=int(encoder["hidden_size"]),
            num_layers=int(encoder["num_hidden_layers"]),
            num_heads=int(encoder["num_attention_heads"]),
            intermediate_size=int(encoder["intermediate_size"]),
            subsampling_channels=int(encoder["subsampling_conv_channels"]),
            conv_kernel_size=int(encoder["conv_kernel_size"]),
            predictor_hidden_size=hidden,
            predictor_layers=int(config["num_decoder_layers"]),
            joint_hidden_size=hidden,
            vocab_size=vocab,
            att_context_sizes=tuple((left, right) for right in rights),
            num_mel_bins=int(encoder["num_mel_bins"]),
            preemphasis=float(preemphasis or 0.0),
            max_symbols=int(config.get("max_symbols_per_step", 10)),
            num_prompts=int(config.get("num_prompts", 128)) if has_prompt else 0,
            prompt_intermediate_size=int(config["prompt_intermediate_size"]) if has_prompt else 0,
            prompts=prompts,
            default_language=_language_of_slot(prompts, default_slot) if has_prompt else None,
        )


def check_att_context(left: int, right: int) -> None:
    """Raise `ContextError` unless left and right are >= 0 and left is a multiple of right + 1.

    Only then does a cache of ``left`` frames hold exactly the whole chunks that the chunk-limited mask
    shows, so that streaming equals the offline forward.
    """
    if left < 0 or right < 0 or left % (right + 1):
        raise ContextError(
            f"att_context_size [{left}, {right}] cannot stream exactly: left must be a multiple of right + 1"
            f" (for right {right}, use left {max(0, math.floor(left / (right + 1)) * (right + 1))})."
            if left >= 0 and right >= 0
            else f"att_context_size [{left}, {right}] must not be negative."
        )


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"The model configuration has no section {name!r}; is it a Nemotron streaming model?"
        )
    return section


def _expect(section: Mapping[str, Any], key: str, value: object) -> None:
    found = section.get(key)
    if found != value:
        raise ConfigError(
            f"The model has {key} = {found!r}; this family has {value!r}, so it cannot be loaded."
        )


def _nemo_max_symbols(yaml: Mapping[str, Any]) -> int:
    greedy = (yaml.get("decoding") or {}).get("greedy") or {}
    return int(greedy.get("max_symbols") or 10)


def _language_of_slot(prompts: Mapping[str, int], slot: int) -> str:
    names = [name for name, number in prompts.items() if number == slot]
    if not names:
        raise ConfigError(f"default_prompt_id {slot} is not in the prompt table.")
    return names[0]
