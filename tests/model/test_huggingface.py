"""The network equals transformers' own classes, for fresh random models of both kinds."""

from __future__ import annotations

import pytest
import torch

from nemostream.config import ModelConfig
from nemostream.decoding import GreedyDecoder, Hypothesis
from nemostream.model.network import Network
from nemostream.runtimes.torch import TorchRuntime
from tests.models import Checkpoint, Tokenizer

transformers = pytest.importorskip("transformers", reason="the oracle is an extra")

TOLERANCE = 2e-5  # fp32, outputs of order 1; the two public references agree with each other to 2e-6

ENCODER = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "subsampling_conv_channels": 24,
    "num_mel_bins": 128,
    "conv_kernel_size": 9,
    "attention_bias": False,
    "convolution_bias": False,
    "scale_input": False,
}
RIGHTS = {"multi": (0, 1, 3, 6, 13), "en": (0, 1, 6, 13)}


def oracle(kind: str) -> torch.nn.Module:
    torch.manual_seed(7)
    common = {"vocab_size": 65, "blank_token_id": 64, "pad_token_id": 0, "decoder_hidden_size": 48}
    if kind == "multi":
        encoder = transformers.NemotronAsrStreamingEncoderConfig(
            **ENCODER, sliding_window=57, default_num_lookahead_tokens=3
        )
        config = transformers.Nemotron3_5AsrConfig(
            encoder_config=encoder, prompt_intermediate_size=96, num_prompts=128, **common
        )
        model = transformers.Nemotron3_5AsrForRNNT(config)
    else:
        encoder = transformers.NemotronAsrStreamingEncoderConfig(
            **ENCODER, sliding_window=71, default_num_lookahead_tokens=13
        )
        config = transformers.NemotronAsrStreamingConfig(encoder_config=encoder, **common)
        model = transformers.NemotronAsrStreamingForRNNT(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias_u", "bias_v")):
                parameter.normal_(0, 0.5)
            elif parameter.ndim >= 2 and not name.startswith("joint"):
                parameter.normal_(0, parameter[0].numel() ** -0.5)
        model.joint.head.weight.normal_(0, 0.6)
        model.decoder.decoder_projector.weight.normal_(0, 1.0)
        model.encoder_projector.weight.normal_(0, 0.5)
        model.decoder.embedding.weight.normal_(0, 2.0)
        model.decoder.embedding.weight[64] = 0.0
        model.joint.head.bias[64] = 3.0  # enough blanks, so that generate's step limit is not met
    model.generation_config.decoder_start_token_id = 64
    return model.eval()


@pytest.fixture(scope="module", params=["multi", "en"])
def pair(request: pytest.FixtureRequest) -> tuple[str, torch.nn.Module, Network]:
    theirs = oracle(request.param)
    config = ModelConfig.from_huggingface(theirs.config.to_dict())
    ours = Network(config).eval().requires_grad_(False)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return request.param, theirs, ours


def mel_of(frames: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, frames, 128, generator=torch.Generator().manual_seed(frames))


def test_encoder_offline(pair: tuple[str, torch.nn.Module, Network]) -> None:
    kind, theirs, ours = pair
    left = ours.config.default_att_context[0]
    lengths = torch.tensor([333, 200, 57])
    mel = mel_of(333, 3) * (torch.arange(333) < lengths[:, None])[:, :, None]
    mask = (torch.arange(333) < lengths[:, None]).long()
    for right in RIGHTS[kind]:
        with torch.no_grad():
            expected = theirs.encoder(mel, attention_mask=mask, num_lookahead_tokens=right).last_hidden_state
        encoded, frames = ours.encoder.encode_utterance(mel, lengths, (left, right))
        for row, count in enumerate(frames):
            assert count == (lengths[row] - 1 + 7) // 8 + 1
            difference = (encoded[row, :count] - expected[row, :count]).abs().max()
            assert difference < TOLERANCE, (right, row)


def test_encoder_streaming(pair: tuple[str, torch.nn.Module, Network]) -> None:
    """Chunk by chunk with transformers' caches, chunk by chunk with ours."""
    kind, theirs, ours = pair
    left = ours.config.default_att_context[0]
    for right in (r for r in RIGHTS[kind] if r):  # transformers' streaming needs a lookahead
        first, later = 1 + 8 * right, 8 * (right + 1)
        mel = mel_of(first + 9 * later)
        state = ours.encoder.initial_state(1, left)
        cache, padding_cache = None, None
        context = torch.tensor([[left, right]])
        start = 0
        for size in [first] + [later] * 9:
            chunk = mel[:, start : start + size]
            start += size
            with torch.no_grad():
                output = theirs.encoder(
                    chunk,
                    cache=cache,
                    padding_cache=padding_cache,
                    use_cache=True,
                    num_lookahead_tokens=right,
                )
            cache, padding_cache = output.cache, output.padding_cache
            rows = torch.nn.functional.pad(chunk, (0, 0, later - size, 0))
            encoded, _, state = ours.encoder(rows, torch.tensor([later]), state, context)
            assert (encoded - output.last_hidden_state).abs().max() < TOLERANCE, right


def test_tokens_equal_generate(pair: tuple[str, torch.nn.Module, Network]) -> None:
    kind, theirs, ours = pair
    config = ours.config
    checkpoint = Checkpoint(
        config,
        {name: value.numpy() for name, value in ours.state_dict().items()},
        Tokenizer([f"p{i}" for i in range(64)]),
        source="random",
        format="huggingface",
    )
    runtime = TorchRuntime(checkpoint)
    runtime.resize(1)
    left = config.default_att_context[0]
    mel = mel_of(250)
    for right in RIGHTS[kind]:
        prompts = {"prompt_ids": torch.tensor([9])} if kind == "multi" else {}
        with torch.no_grad():
            sequence = theirs.generate(
                input_features=mel,
                attention_mask=torch.ones(1, 250, dtype=torch.long),
                num_lookahead_tokens=right,
                max_new_tokens=1000,
                **prompts,
            )
        sequence = getattr(sequence, "sequences", sequence)
        expected = [token for token in sequence[0].tolist() if token != config.blank_id]
        encoded, frames = ours.encoder.encode_utterance(mel, torch.tensor([250]), (left, right))
        projected = ours.project(encoded, torch.tensor([9])).numpy()
        runtime.reset(0)
        (tokens,) = GreedyDecoder(runtime).decode([0], [Hypothesis()], projected, frames.numpy())
        assert [token for token, _ in tokens] == expected
        assert len(set(expected)) > 3  # the random model says something
