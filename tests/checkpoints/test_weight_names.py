"""The names and shapes are those of the two published models, in both naming schemes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemostream.checkpoints.names import canonical_to_nemo, expected_shapes, nemo_to_canonical
from nemostream.config import ModelConfig
from nemostream.text.languages import PUBLISHED_PROMPTS

MULTI = ModelConfig(
    hidden_size=1024,
    num_layers=24,
    num_heads=8,
    intermediate_size=4096,
    subsampling_channels=256,
    conv_kernel_size=9,
    predictor_hidden_size=640,
    predictor_layers=2,
    joint_hidden_size=640,
    vocab_size=13087,
    att_context_sizes=((56, 3),),
    num_prompts=128,
    prompt_intermediate_size=2048,
    prompts=PUBLISHED_PROMPTS,
    default_language="auto",
)
ENGLISH = dataclasses.replace(
    MULTI, vocab_size=1024, num_prompts=0, prompt_intermediate_size=0, prompts={}, default_language=None
)
MODELS = {"nemotron-3.5": MULTI, "en": ENGLISH}

# of the published key lists: tensors, parameters, SHA-256 of the sorted lines "name [shape]" in either scheme
FACTS = {
    "nemotron-3.5": (
        655,
        637_997_088,
        "f6f2da6058d1626bf99402ee02e8e577d85f1f01e8e63c80997a63c8f2f81caf",
        "1090818a6038b8391c5725a946d69ecf64066a8e3a76e0e5f936b57e95ac7fd1",
    ),
    "en": (
        651,
        618_084_865,
        "5500fde55e321da9b6e0b1cae82e5d397a313dc4a0562185b2cadf0664ae0f06",
        "426bed227164a571c4ceaa07fbefe5012df4c37392d7a472fd5b5d92bf0032db",
    ),
}


def digest(shapes: dict[str, tuple[int, ...]]) -> str:
    lines = sorted(f"{name} {list(shape)}" for name, shape in shapes.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def rows(path: Path, model: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for line in path.read_text().splitlines()[1:]:
        kind, name, shape, *_ = line.split("\t")
        if kind == model:
            yield name, tuple(json.loads(shape))


@pytest.mark.parametrize("model", MODELS)
def test_full_size_models_have_the_published_tensors(model: str) -> None:
    shapes = expected_shapes(MODELS[model])
    count, parameters, canonical, nemo = FACTS[model]
    assert len(shapes) == count
    assert sum(math.prod(shape) for shape in shapes.values()) == parameters
    assert digest(shapes) == canonical
    assert digest({canonical_to_nemo(name): shape for name, shape in shapes.items()}) == nemo


@pytest.mark.parametrize("model", MODELS)
def test_names_equal_the_key_lists(model: str, shared_dir: Path) -> None:
    shapes = expected_shapes(MODELS[model])
    assert list(rows(shared_dir / "spec" / "weights_hf.tsv", model)) == list(shapes.items())
    renamed = {
        canonical: shape
        for name, shape in rows(shared_dir / "spec" / "weights_nemo.tsv", model)
        if (canonical := nemo_to_canonical(name)) is not None
    }
    assert renamed == shapes


@pytest.mark.parametrize("model", MODELS)
def test_the_two_schemes_are_inverse(model: str) -> None:
    names = list(expected_shapes(MODELS[model]))
    assert [nemo_to_canonical(canonical_to_nemo(name)) for name in names] == names


def test_computed_buffers_are_dropped_and_unknown_names_kept() -> None:
    assert nemo_to_canonical("preprocessor.featurizer.fb") is None
    assert nemo_to_canonical("preprocessor.featurizer.window") is None
    assert nemo_to_canonical("ctc_decoder.weight") == "ctc_decoder.weight"


def test_mlx_encoder_file_has_642_tensors() -> None:
    names = [name for name in expected_shapes(MULTI) if not name.startswith(("decoder.", "joint."))]
    assert len(names) == 642
