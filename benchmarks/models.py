"""Models with random weights for benchmarks, made on the spot: the published size, and a small one.

    python -m benchmarks.models full /tmp/full-hf          # a Hugging Face folder, 2.6 GB
    python -m benchmarks.models small /tmp/small-hf

Speed does not depend on the values of weights, with one exception: how many tokens are emitted decides how
often the predictor runs. So they are made to say some, about as many as speech has; the figure ``share``
counts them.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.sound import sound
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.huggingface import save_huggingface
from nemostream.checkpoints.names import expected_shapes
from nemostream.config import ModelConfig
from nemostream.features import IncrementalLogMel
from nemostream.runtimes.protocol import Float32
from nemostream.runtimes.torch import TorchRuntime
from nemostream.text.languages import PUBLISHED_PROMPTS
from nemostream.text.tokenizer import Tokenizer

_ABOVE = 0.3  # part of the frames above the threshold of `_make_it_speak`
_SIGNS = (1.0, -1.0, 1.0, -1.0)  # of the hidden units of the joint that `_make_it_speak` uses
_OPEN = 5.0  # what opens a gate, or closes it
_PASSED = float(np.tanh(np.tanh(_OPEN * np.tanh(np.tanh(_OPEN)))))  # of 1, after two LSTM layers
_SURE = 60.0  # logits between what is said and what is not, where frames differ most
_USUAL_BEST = 4.0  # logit of the best of many random tokens
_LISTEN_SECONDS, _ROWS = 10.0, 32  # rows of mel in 320 ms

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
    pieces = Tokenizer(tuple(_pieces(config.vocab_size)))
    checkpoint = Checkpoint(config, tensors, pieces, "random", "huggingface")
    _make_it_speak(checkpoint)
    return checkpoint


def _tensor(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Float32:
    if "norm" in name:
        return np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)
    if name.endswith("bias") or ".bias_" in name:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
    inputs = int(np.prod(shape[1:]))
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(inputs**-0.5)


def _make_it_speak(checkpoint: Checkpoint) -> None:
    """Make the model say a token whenever a number of its encoder frames crosses a threshold.

    A random transducer sooner or later finds a token after which it is silent for ever, or one after which it
    never is. This one knows two kinds of tokens, of which the predictor remembers the last: it says the one
    kind when the number goes above the threshold, the other when it goes below, and else the blank.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    kinds = np.where(np.arange(config.vocab_size) % 2, -1.0, 1.0).astype(np.float32)
    tensors["decoder.embedding.weight"][: config.vocab_size, 0] = kinds
    for layer in range(config.predictor_layers):  # unit 0 of each layer passes the last token's kind on
        enter, forget, cell, leave = np.arange(4) * config.predictor_hidden_size
        for side in ("ih", "hh"):
            for gate in (enter, forget, cell, leave):
                tensors[f"decoder.lstm.weight_{side}_l{layer}"][gate] = 0.0
                tensors[f"decoder.lstm.bias_{side}_l{layer}"][gate] = 0.0
        tensors[f"decoder.lstm.weight_ih_l{layer}"][cell, 0] = _OPEN
        for gate, value in ((enter, _OPEN), (forget, -_OPEN), (leave, _OPEN)):
            tensors[f"decoder.lstm.bias_ih_l{layer}"][gate] = 2 * value
    frames = _frames(checkpoint)[:, len(_SIGNS)]
    threshold = np.quantile(frames, 1 - _ABOVE)
    size = np.abs(frames - threshold).max()
    tensors["decoder.decoder_projector.weight"][: len(_SIGNS)] = 0.0
    tensors["decoder.decoder_projector.bias"][: len(_SIGNS)] = 0.0
    weight, bias = (tensors[f"encoder_projector.{kind}"] for kind in ("weight", "bias"))
    for unit, sign in enumerate(_SIGNS):
        weight[unit] = sign / size * weight[len(_SIGNS)]
        bias[unit] = sign / size * (bias[len(_SIGNS)] - threshold)
    head, blank = tensors["joint.head.weight"], config.blank_id
    # units 0 and 1: the number and the last kind agree, which speaks for the blank; 2 and 3: the kind to say
    for unit, sign in enumerate(_SIGNS[:2]):
        tensors["decoder.decoder_projector.weight"][unit, 0] = sign / _PASSED
        head[:blank, unit], head[blank, unit] = 0.0, _SURE
    for unit, sign in enumerate(_SIGNS[2:], 2):
        head[:blank, unit] = np.where(kinds == sign, _SURE / 4, 0.0)
        head[blank, unit] = 0.0
    tensors["joint.head.bias"][blank] = _USUAL_BEST - _SURE


def _frames(checkpoint: Checkpoint) -> Float32:
    """Encoder frames [N, J] of the sound."""
    mel, runtime = IncrementalLogMel().feed(sound(_LISTEN_SECONDS)), TorchRuntime(checkpoint)
    runtime.resize(1)
    runtime.reset(0)
    one = np.array([_ROWS])
    parts = [
        runtime.encode([0], mel[None, row : row + _ROWS], one, 0 * one, np.array([[56, 3]]))[0][0]
        for row in range(0, len(mel) - _ROWS + 1, _ROWS)
    ]
    return np.concatenate(parts)


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
