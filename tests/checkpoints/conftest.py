"""Small random checkpoints, and ``.nemo`` files made of them on the fly."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.names import canonical_to_nemo, expected_shapes
from nemostream.config import ModelConfig
from nemostream.text.tokenizer import Tokenizer

PIECES = ("<unk>", "<en-US>", "<de-DE>", "\u2581the", "\u2581no", "no", "on", "1", "\u2581", "s", ".")

PROMPT_CONFIG = ModelConfig(
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    subsampling_channels=4,
    conv_kernel_size=9,
    predictor_hidden_size=6,
    predictor_layers=2,
    joint_hidden_size=6,
    vocab_size=len(PIECES),
    att_context_sizes=((56, 3), (56, 0), (56, 6), (56, 13)),
    num_prompts=128,
    prompt_intermediate_size=16,
    prompts={"en-US": 0, "de-DE": 9, "no": 27, "auto": 101},
    default_language="auto",
)
ENGLISH_CONFIG = dataclasses.replace(
    PROMPT_CONFIG,
    att_context_sizes=((70, 13), (70, 6), (70, 1), (70, 0)),
    num_prompts=0,
    prompt_intermediate_size=0,
    prompts={},
    default_language=None,
)


@pytest.fixture(params=["prompt", "english"])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return PROMPT_CONFIG if request.param == "prompt" else ENGLISH_CONFIG


@pytest.fixture
def make_checkpoint() -> Callable[..., Checkpoint]:
    def make(config: ModelConfig = PROMPT_CONFIG, dtype: str = "float32") -> Checkpoint:
        rng = np.random.default_rng(7)
        tensors = {
            name: rng.standard_normal(shape, dtype=np.float32).astype(dtype)
            for name, shape in expected_shapes(config).items()
        }
        return Checkpoint(config, tensors, Tokenizer(PIECES), "memory", "nemo")

    return make


@pytest.fixture
def checkpoint(config: ModelConfig, make_checkpoint: Callable[..., Checkpoint]) -> Checkpoint:
    return make_checkpoint(config)


def nemo_tree(config: ModelConfig) -> dict[str, Any]:
    """What NeMo's ``model_config.yaml`` says about such a model, where this project looks at it."""
    defaults: dict[str, Any] = {}
    if config.has_prompt:
        defaults = {"num_prompts": config.num_prompts, "prompt_dictionary": dict(config.prompts)}
    return {
        "model_defaults": defaults,
        "preprocessor": {
            "sample_rate": 16000,
            "normalize": "NA",
            "n_fft": 512,
            "features": config.num_mel_bins,
        },
        "encoder": {
            "n_layers": config.num_layers,
            "d_model": config.hidden_size,
            "use_bias": False,
            "subsampling": "dw_striding",
            "subsampling_factor": 8,
            "subsampling_conv_channels": config.subsampling_channels,
            "causal_downsampling": True,
            "ff_expansion_factor": config.intermediate_size // config.hidden_size,
            "self_attention_model": "rel_pos",
            "n_heads": config.num_heads,
            "att_context_size": [list(pair) for pair in config.att_context_sizes],
            "att_context_style": "chunked_limited",
            "xscaling": False,
            "conv_kernel_size": config.conv_kernel_size,
            "conv_norm_type": "layer_norm",
            "conv_context_size": "causal",
        },
        "decoder": {
            "prednet": {
                "pred_hidden": config.predictor_hidden_size,
                "pred_rnn_layers": config.predictor_layers,
            }
        },
        "joint": {
            "jointnet": {"joint_hidden": config.joint_hidden_size, "activation": "relu"},
            "num_classes": config.vocab_size,
            "vocabulary": list(PIECES),
        },
    }


def nemo_weights(checkpoint: Checkpoint) -> bytes:
    """Return a torch state dict with NeMo's names, and the two buffers that NeMo stores besides."""
    torch = pytest.importorskip("torch")
    state = {canonical_to_nemo(name): torch.from_numpy(array) for name, array in checkpoint.tensors.items()}
    state["preprocessor.featurizer.window"] = torch.zeros(400)
    state["preprocessor.featurizer.fb"] = torch.zeros(1, 128, 257)
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def nemo_members() -> Callable[[Checkpoint], dict[str, bytes]]:
    """Return name -> content of a ``.nemo`` file, to be altered before it is written."""

    def members(checkpoint: Checkpoint) -> dict[str, bytes]:
        yaml = pytest.importorskip("yaml")
        text = yaml.safe_dump(nemo_tree(checkpoint.config), allow_unicode=True, sort_keys=False)
        return {"./model_config.yaml": text.encode(), "./model_weights.ckpt": nemo_weights(checkpoint)}

    return members


@pytest.fixture
def tar() -> Callable[..., Path]:
    return write_tar


@pytest.fixture
def same() -> Callable[[Checkpoint, Checkpoint], bool]:
    """Tell whether two checkpoints have the same configuration, pieces and bits."""

    def equal(a: Checkpoint, b: Checkpoint) -> bool:
        return (
            a.config == b.config
            and a.tokenizer == b.tokenizer
            and list(a.tensors) == list(b.tensors)
            and all(
                a.tensors[name].dtype == b.tensors[name].dtype
                and a.tensors[name].tobytes() == b.tensors[name].tobytes()
                for name in a.tensors
            )
        )

    return equal
