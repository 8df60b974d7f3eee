"""The network equals NeMo 3.0: offline, native streaming, and uniform streaming with NeMo's own caches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nemostream.checkpoints import load_checkpoint
from nemostream.model.network import Network
from nemostream.model.uniform import initial_uniform_state, uniform_step
from nemostream.runtimes.torch import load_network

TOLERANCE = 2e-5
GERMAN = torch.tensor([9])

Golden = tuple[str, Network, dict[str, torch.Tensor], dict[str, object]]


@pytest.fixture(scope="module", params=["multi", "en"])
def reference(request: pytest.FixtureRequest, golden: Path) -> Golden:
    name = request.param
    network = load_network(load_checkpoint(golden / f"{name}.nemo"))
    return (
        name,
        network,
        load_file(golden / f"{name}.safetensors"),
        json.loads((golden / f"{name}.json").read_text()),
    )


def features(tensors: dict[str, torch.Tensor], clip: str) -> torch.Tensor:
    """[T, 128] of NeMo."""
    return tensors[f"{clip}.features"][0].T[: int(tensors[f"{clip}.features_len"])]


@pytest.mark.parametrize("clip", ["a0", "a1"])
def test_offline(reference: Golden, clip: str) -> None:
    name, network, tensors, _ = reference
    mel = features(tensors, clip)[None]
    for context in network.config.att_context_sizes:
        key = f"{clip}.R{context[1]}"
        encoded, lengths = network.encoder.encode_utterance(mel, torch.tensor([mel.shape[1]]), context)
        assert lengths.tolist() == tensors[f"{key}.len"].tolist()
        assert (encoded[0].T - tensors[f"{key}.encoder"][0]).abs().max() < TOLERANCE
        if name == "multi":
            fused = network.fuse(encoded, GERMAN)
            assert (fused[0].T - tensors[f"{key}.fused"][0]).abs().max() < TOLERANCE


@pytest.mark.parametrize("clip", ["a0", "a1"])
def test_native_streaming_and_caches(reference: Golden, clip: str) -> None:
    """NeMo caches the attention input; ours caches what its projections make of it."""
    _, network, tensors, info = reference
    encoder = network.encoder
    mel = torch.nn.functional.pad(features(tensors, clip), (0, 0, 7, 0))
    checked = 0
    for left, right in network.config.att_context_sizes:
        key, rows = f"{clip}.native.R{right}", 8 * (right + 1)
        if key not in info:
            assert right == 0  # NeMo's own stream is wrong there, see the specification
            continue
        state = encoder.initial_state(1, left)
        for index, start in enumerate(range(0, len(mel) - rows + 1, rows)):
            chunk = mel[None, start : start + rows]
            encoded, _, state = encoder(chunk, torch.tensor([rows]), state, torch.tensor([[left, right]]))
            if f"{key}.{index}.encoded" not in tensors:
                continue
            checked += 1
            assert (encoded[0].T - tensors[f"{key}.{index}.encoded"][0]).abs().max() < TOLERANCE
            theirs = tensors[f"{key}.{index}.cache_last_channel"]
            valid = int(tensors[f"{key}.{index}.cache_last_channel_len"])
            for number, layer in enumerate(encoder.layers):
                keys, values = layer.self_attn.project_past(theirs[number])
                assert (state.keys[number] - keys)[:, left - valid :].abs().max() < TOLERANCE
                assert (state.values[number] - values)[:, left - valid :].abs().max() < TOLERANCE
            time = tensors[f"{key}.{index}.cache_last_time"]
            assert (state.gated.transpose(2, 3) - time).abs().max() < TOLERANCE
    assert checked >= 6


@pytest.mark.parametrize("clip", ["a0", "a1"])
def test_uniform_streaming_and_caches(reference: Golden, clip: str) -> None:
    _, network, tensors, info = reference
    mel = features(tensors, clip)
    keys = [key for key in info if key.startswith(f"{clip}.uniform.")]
    assert len(keys) >= 3
    for key in keys:
        left, right, chunk = re.fullmatch(r".*\.L(\d+)R(\d+)(?:C(\d+))?", key).groups()  # type: ignore[union-attr]
        left, right = int(left), int(right)
        rows = int(chunk or 8 * (right + 1))
        state = initial_uniform_state(network.encoder, 1, left)
        padded = torch.nn.functional.pad(mel, (0, 0, 9, rows))
        outputs = []
        for index, start in enumerate(range(0, len(mel), rows)):
            length = min(9 + rows, 9 + len(mel) - start)
            window = padded[None, start : start + 9 + rows].clone()
            window[:, length:] = 0
            encoded, frames, state = uniform_step(
                network.encoder, window, torch.tensor([length]), state, torch.tensor([[left, right]])
            )
            outputs.append(encoded[0, : int(frames)])
            name = f"{key}.{index}"
            if f"{name}.encoded" in tensors:
                assert (outputs[-1].T - tensors[f"{name}.encoded"][0]).abs().max() < TOLERANCE
                for ours, theirs in zip(state, ("cache_last_channel", "cache_last_time"), strict=False):
                    assert (ours - tensors[f"{name}.{theirs}"]).abs().max() < TOLERANCE
                assert (
                    state.cache_last_channel_len.tolist()
                    == tensors[f"{name}.cache_last_channel_len"].tolist()
                )
        whole, theirs = torch.cat(outputs).T, tensors[f"{key}.encoded"][0]
        # NeMo throws away a last window with fewer than 8 new mel frames
        assert whole.shape[1] - theirs.shape[1] in (0, 1)
        assert (whole[:, : theirs.shape[1]] - theirs).abs().max() < TOLERANCE
