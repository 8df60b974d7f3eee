"""Small random models for tests, made of the same parts as real ones."""

from __future__ import annotations

import torch

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.config import ModelConfig
from nemostream.model.network import Network
from nemostream.text.tokenizer import Tokenizer

CONTEXTS = ((56, 3), (56, 0), (56, 1), (56, 6), (56, 13))
PIECES = ("<unk>", "<en-US>", "<de-DE>", *(f"▁w{i}" for i in range(20)), *(f"s{i}" for i in range(40)), ".")


def small_config(*, prompt: bool = True, contexts: tuple[tuple[int, int], ...] = CONTEXTS) -> ModelConfig:
    """Two layers, everything else in proportion."""
    return ModelConfig(
        hidden_size=48,
        num_layers=2,
        num_heads=4,
        intermediate_size=96,
        subsampling_channels=16,
        conv_kernel_size=9,
        predictor_hidden_size=32,
        predictor_layers=2,
        joint_hidden_size=32,
        vocab_size=len(PIECES),
        att_context_sizes=contexts,
        num_prompts=128 if prompt else 0,
        prompt_intermediate_size=64 if prompt else 0,
        prompts={"en-US": 0, "de-DE": 9, "auto": 101} if prompt else {},
        default_language="auto" if prompt else None,
    )


def small_network(config: ModelConfig, seed: int = 0) -> Network:
    """A network with lively weights: outputs of order 1, and a joint that emits tokens as well as blanks."""
    torch.manual_seed(seed)
    network = Network(config).eval().requires_grad_(False)
    for name, parameter in network.named_parameters():
        if name.endswith(("bias_u", "bias_v")):
            parameter.normal_(0.0, 0.5)
        elif name.startswith("joint.head.weight"):
            parameter.normal_(0.0, 0.6)
        elif name.startswith("encoder_projector.weight"):
            parameter.normal_(0.0, 0.5)
        elif name.startswith("decoder.decoder_projector.weight"):
            parameter.normal_(0.0, 1.0)
        elif name.startswith("decoder.embedding"):
            parameter.normal_(0.0, 2.0)
        elif parameter.ndim >= 2:
            parameter.mul_(1.6)
    network.decoder.embedding.weight[config.blank_id] = 0.0
    network.joint.head.bias[config.blank_id] = 2.0
    return network


def small_checkpoint(config: ModelConfig, seed: int = 0) -> Checkpoint:
    """`small_network` as a checkpoint."""
    tensors = {name: value.numpy().copy() for name, value in small_network(config, seed).state_dict().items()}
    return Checkpoint(config, tensors, Tokenizer(PIECES), source="random", format="huggingface")
