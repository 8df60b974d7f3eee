"""Models with random weights for benchmarks, made on the spot: the published size, and a small one.

    python -m benchmarks.models full /tmp/full-hf          # a Hugging Face folder, 2.6 GB
    python -m benchmarks.models small /tmp/small-hf

Speed does not depend on the values of weights, with one exception: how many tokens are emitted decides how
often the predictor runs. The bias of the blank is set so that about `TOKENS_PER_FRAME` are.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.huggingface import save_huggingface
from nemostream.checkpoints.names import expected_shapes
from nemostream.config import ModelConfig
from nemostream.runtimes.protocol import Float32
from nemostream.text.languages import PUBLISHED_PROMPTS
from nemostream.text.tokenizer import Tokenizer

TOKENS_PER_FRAME = 0.25  # about 3 a second, as fluent English has

FULL = ModelConfig(  # nvidia/nemotron-3.5-asr-streaming-0.6b
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
    att_context_sizes=((56, 3), (56, 0), (56, 6), (56, 13)),
    num_prompts=128,
    prompt_intermediate_size=2048,
    prompts=PUBLISHED_PROMPTS,
    default_language="auto",
)
SMALL = dataclasses.replace(
    FULL,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    intermediate_size=256,
    subsampling_channels=16,
    predictor_hidden_size=64,
    joint_hidden_size=64,
    vocab_size=200,
    prompt_intermediate_size=128,
)
CONFIGS = {"full": FULL, "small": SMALL}


def random_checkpoint(config: ModelConfig, seed: int = 0) -> Checkpoint:
    """A checkpoint whose weights are noise of the size that keeps activations near 1."""
    generator = np.random.default_rng(seed)
    tensors = {name: _tensor(name, shape, generator) for name, shape in expected_shapes(config).items()}
    # the blank's row of the embedding is the padding row: zero in every trained checkpoint
    tensors["decoder.embedding.weight"][config.blank_id] = 0.0
    tensors["joint.head.bias"][config.blank_id] = _blank_bias(tensors, config, generator)
    return Checkpoint(config, tensors, Tokenizer(tuple(_pieces(config.vocab_size))), "random", "huggingface")


def _tensor(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Float32:
    if "norm" in name:
        return np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)
    if name.endswith("bias") or ".bias_" in name:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
    inputs = int(np.prod(shape[1:]))
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(inputs**-0.5)


def _blank_bias(tensors: dict[str, Float32], config: ModelConfig, generator: np.random.Generator) -> float:
    """What the blank's logit has to gain, judged by a sum of two random vectors of the usual size."""
    hidden = np.maximum(generator.standard_normal((256, config.joint_hidden_size), dtype=np.float32), 0.0)
    logits = hidden @ tensors["joint.head.weight"].T + tensors["joint.head.bias"]
    lead = logits[:, : config.blank_id].max(axis=1) - logits[:, config.blank_id]
    return float(tensors["joint.head.bias"][config.blank_id] + np.quantile(lead, 1 - TOKENS_PER_FRAME))


def _pieces(count: int) -> Iterator[str]:
    """Piece names: the tags of two languages, then words and parts of words in turn."""
    yield from ("<unk>", "<en-US>", "<de-DE>")
    for index in range(3, count):
        yield f"▁w{index}" if index % 2 else f"p{index}"


def main() -> None:
    """Write a model as a Hugging Face folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", choices=CONFIGS)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    save_huggingface(random_checkpoint(CONFIGS[arguments.size]), arguments.folder)


if __name__ == "__main__":
    main()
