"""The modules that become CoreML graphs: NeMo's own numbers, and the reference network's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nemostream.checkpoints import load_checkpoint
from nemostream.export.coreml.bundle import graph_modules
from nemostream.features.mel import log_mel
from nemostream.model.network import Network
from nemostream.model.uniform import initial_uniform_state, uniform_step
from nemostream.runtimes.coreml_contract import (
    PROMPT_ID,
    WINDOW,
    WINDOW_LENGTH,
    Contract,
    Layout,
    contract,
    valid_frames,
)
from nemostream.runtimes.torch import load_network
from tests.models import small_config, small_network

GOLDEN_TOLERANCE = 2e-5  # as between the reference and NeMo
TOLERANCE = 2e-6  # the same fp32 operations, in graphs that are cut elsewhere
GERMAN = 9

Values = dict[str, Tensor]


class Chain:
    """A bundle's encoder, run from its contract as a host would."""

    def __init__(self, network: Network, made: Contract) -> None:
        self.contract = made
        self.modules = {name: module.eval() for name, module, _ in graph_modules(network, made)}
        self.state = {
            (graph.name, value.name): torch.zeros(value.shape, dtype=dtype(value.dtype))
            for graph in made.graphs.values()
            for value in graph.inputs
            if value.name in graph.state
        }

    @torch.no_grad()
    def call(self, window: Tensor, length: int, prompt: int = GERMAN) -> tuple[Tensor, int]:
        """Window [1, 9 + 8 N, F] -> frames [N, D] and their valid number."""
        known = {
            WINDOW: window.transpose(1, 2),
            WINDOW_LENGTH: torch.tensor([length], dtype=torch.int32),
            PROMPT_ID: torch.tensor([prompt], dtype=torch.int32),
        }
        for name in self.contract.encoder:
            graph = self.contract.graphs[name]
            given = [
                known[graph.takes[value.name]] if value.name in graph.takes else self.state[name, value.name]
                for value in graph.inputs
            ]
            results = dict(zip((v.name for v in graph.outputs), self.modules[name](*given), strict=True))
            self.state |= {(name, value): results[source] for value, source in graph.state.items()}
            known |= {f"{name}.{output}": result for output, result in results.items()}
        made = self.contract
        valid = valid_frames(length) if made.valid is None else int(known[made.valid])
        return known[made.encoded][0].T, valid

    def caches(self, word: str) -> Tensor:
        """The layers' caches with "channel" or "time" in their names, [layers, 1, ...]."""
        parts = [
            value if value.shape[0] != 1 else value.transpose(0, 1)
            for (_, name), value in self.state.items()
            if word in name and not name.endswith("len")
        ]
        return torch.cat(parts)


def dtype(name: str) -> torch.dtype:
    return torch.int32 if name == "int32" else torch.float32


@pytest.mark.parametrize(
    ("model", "layout"), [("multi", "single"), ("multi", "sharded"), ("en", "english"), ("en", "single")]
)
def test_chains_of_calls_are_those_of_nemo(golden: Path, model: str, layout: Layout) -> None:
    network = load_network(load_checkpoint(golden / f"{model}.nemo"))
    tensors = load_file(golden / f"{model}.safetensors")
    keys = [key for key in json.loads((golden / f"{model}.json").read_text()) if ".uniform." in key]
    compared = 0
    for key in keys:
        left, right, chunk = re.fullmatch(r".*\.L(\d+)R(\d+)(?:C(\d+))?", key).groups()  # type: ignore[union-attr]
        att_context, rows = (int(left), int(right)), int(chunk or 8 * (int(right) + 1))
        chain = Chain(network, contract(network.config, layout, att_context, rows // 8))
        mel = tensors[f"{key[:2]}.features"][0].T[: int(tensors[f"{key[:2]}.features_len"])]
        padded = nn.functional.pad(mel, (0, 0, 9, rows))
        whole = []
        for index, start in enumerate(range(0, len(mel), rows)):
            length = min(9 + rows, 9 + len(mel) - start)
            frames, valid = chain.call(padded[None, start : start + 9 + rows], length)
            whole.append(frames[:valid])
            if length < 9 + rows or f"{key}.{index}.encoded" not in tensors:
                continue
            compared += 1
            for word in ("channel", "time"):
                ours, theirs = chain.caches(word), tensors[f"{key}.{index}.cache_last_{word}"]
                assert (ours - theirs).abs().max() < GOLDEN_TOLERANCE
        if layout == "sharded":  # its frames are those after the prompt
            continue
        ours, theirs = torch.cat(whole).T, tensors[f"{key}.encoded"][0]
        full = theirs.shape[1]
        if layout == "single":  # it knows no length, so its last, shorter call is another one
            full = len(mel) // rows * (rows // 8)
        assert (ours[:, :full] - theirs[:, :full]).abs().max() < GOLDEN_TOLERANCE
    assert compared >= 6


@pytest.mark.parametrize("layout", ["single", "english", "sharded"])
def test_chains_of_calls_are_those_of_the_reference(layout: Layout) -> None:
    """Frames after the prompt where the graphs have it; the last call is short."""
    network = network_of_four_layers()
    left, right, frames = 14, 6, 14
    chain = Chain(network, contract(network.config, layout, (left, right), frames))
    mel = torch.randn(1, 9 + 8 * frames * 3 + 21, network.config.num_mel_bins)
    mel[:, :9] = 0
    state = initial_uniform_state(network.encoder, 1, left)
    rows = 8 * frames
    for start in range(0, mel.shape[1] - 9, rows):
        window = mel[:, start : start + 9 + rows]
        length = window.shape[1]
        window = nn.functional.pad(window, (0, 0, 0, 9 + rows - length))
        ours, valid = chain.call(window, length)
        told = 9 + rows if layout == "single" else length
        with torch.no_grad():
            theirs, count, state = uniform_step(
                network.encoder, window, torch.tensor([told]), state, torch.tensor([[left, right]])
            )
            if layout != "single":
                theirs = network.fuse(theirs, torch.tensor([GERMAN]))
                assert valid == int(count)
        assert (ours - theirs[0])[:valid].abs().max() < TOLERANCE * theirs.abs().max()
        if length == 9 + rows:
            assert (chain.caches("channel") - state.cache_last_channel).abs().max() < TOLERANCE * 10
            assert (chain.caches("time") - state.cache_last_time).abs().max() < TOLERANCE * 10
    assert valid == 3  # ceil(21 / 8)


@pytest.mark.parametrize(
    ("layout", "names"),
    [("single", ("decoder", "joint_noencproj_batched")), ("english", ("decoder",)), ("watch", ("decoder",))],
)
def test_decoders_are_the_reference(layout: Layout, names: tuple[str, ...]) -> None:
    """A token, a state and frames give the logits, the choice and the new state of the network."""
    network = network_of_four_layers()
    config, generator = network.config, torch.Generator().manual_seed(1)
    made = contract(config, layout, (14, 6), 14)
    modules = {name: module for name, module, _ in graph_modules(network, made)}
    token = torch.tensor([[5]], dtype=torch.int32)
    one = torch.ones(1, dtype=torch.int32)
    h, c = (torch.randn(2, 1, config.predictor_hidden_size, generator=generator) for _ in range(2))
    frames = torch.randn(1, config.hidden_size, 14, generator=generator)
    with torch.no_grad():
        predicted, (new_h, new_c) = network.decoder(token.long(), (h, c))
        encoded = network.encoder_projector(frames.transpose(1, 2))
        logits = network.joint(encoded, predicted)[0]
        if layout == "single":
            fused = network.project(frames.transpose(1, 2), torch.tensor([GERMAN]))
            projected = modules["prompt_projection"](frames, torch.tensor([GERMAN]))
            assert (projected - fused).abs().max() < TOLERANCE * 10
        if layout in ("single", "watch"):
            output, *state = modules["decoder"](token, one, h, c)
            assert output.shape == (1, config.predictor_hidden_size, 1)
        if layout == "single":
            window = modules["joint_noencproj_batched"](encoded[:, :8], output)
            assert (window[0, :, 0] - logits[:8]).abs().max() < TOLERANCE * 10
        elif layout == "english":
            single, length, *state = modules["decoder"](frames[:, :, 3:4], token, one, h, c)
            assert length.tolist() == [1]
            assert (single[0, 0, 0] - logits[3]).abs().max() < TOLERANCE * 10
        else:
            for frame in range(14):
                step = modules["decoder_joint_argmax"](token, one, h, c, frames[:, :, frame : frame + 1])
                assert step[0].tolist() == [[[int(logits[frame].argmax())]]]
                assert torch.equal(step[1], state[0])
    for ours, theirs in zip(state, (new_h, new_c), strict=True):
        assert (ours - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("samples", [35840, 30007, 161, 0])
def test_preprocessor_is_the_front_end_of_its_chunk(samples: int) -> None:
    network = network_of_four_layers()
    made = contract(network.config, "sharded", (14, 13), 28)
    preprocessor = {name: module for name, module, _ in graph_modules(network, made)}["preprocessor"]
    audio = np.zeros(35840, np.float32)
    audio[:samples] = np.random.default_rng(0).normal(0, 0.1, samples)
    audio[: samples // 2] *= 1e-3  # nearly digital silence is where a transform would lose bits
    mel, length = preprocessor(torch.from_numpy(audio)[None], torch.tensor([samples], dtype=torch.int32))
    expected = log_mel(audio[:samples])
    assert mel.shape == (1, 128, 224)
    assert int(length) == len(expected) == samples // 160
    assert np.abs(mel[0].T[: len(expected)].numpy() - expected).max(initial=0) < 1e-3  # of values of order 10
    assert not mel[0, :, len(expected) :].any()


def network_of_four_layers() -> Network:
    import dataclasses

    return small_network(dataclasses.replace(small_config(), num_layers=4))
