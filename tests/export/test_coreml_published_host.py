"""The host code that was published with the sharded layout runs on our bundle and hears what it should.

The code is in the developers' folder, with the description of that bundle; only the two sizes that it has
are changed. It gets our saved packages, executed by the MIL runner, in place of compiled models. The
expectation is the reference network in PyTorch on the same chunks of audio, with all constants rounded as
the bundle has them; a random network is close to a tie at every step, so less would not do.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from nemostream.features.mel import log_mel
from nemostream.model.network import Network
from nemostream.model.uniform import initial_uniform_state, uniform_step
from tests.conftest import REPOSITORY
from tests.coreml_bundles import CONTEXT, small_coreml_bundle, small_coreml_network, with_stored_scales

CLIP = REPOSITORY / "tests" / "data" / "golden" / "a0.wav"
TIER = "2240ms"  # where the code looks; our bundle there is of another tier, as its metadata says
LANGUAGE = "de-DE"
PREDICTOR_SIZE = 32


class Packages:
    """What the code uses of coremltools."""

    ComputeUnit = SimpleNamespace(CPU_ONLY=0, CPU_AND_NE=1)

    class models:
        class CompiledMLModel:
            def __init__(self, path: str, compute_units: int) -> None:
                from nemostream.mil import read_program

                self.program = read_program(Path(path).with_suffix(".mlpackage"), fp16=False)

            def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
                assert set(inputs) == set(self.program.inputs)  # CoreML refuses others
                return self.program(inputs)


def published_transcribe(
    shared_dir: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    text = next((shared_dir / "seeds").glob("002_*.txt")).read_text()
    code = re.search(r"^import json, numpy.*?\.strip\(\)$", text, re.MULTILINE | re.DOTALL)
    assert code is not None
    (tmp_path / "multilingual").mkdir()
    (tmp_path / "multilingual" / TIER).symlink_to(bundle)
    hub = ModuleType("huggingface_hub")
    hub.snapshot_download = lambda *_, **__: str(tmp_path)  # type: ignore[attr-defined]
    scope: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", hub)
        for name in ("ComputeUnit", "models"):
            patch.setattr(f"coremltools.{name}", getattr(Packages, name))
        exec(code.group().replace("6*k:6*k+6", "k:k+1").replace("640", str(PREDICTOR_SIZE)), scope)
    return scope["transcribe"]


def rounded(network: Network) -> Network:
    """A copy with the weights of the bundle: the encoder's larger matrices int8 by output, all else fp16."""
    changed = with_stored_scales(network)
    for name, parameter in changed.named_parameters():
        if "relative_k" in name:  # the position tables are rounded instead
            continue
        values = parameter.data.half().float()
        if name.startswith("prompt_projector.linear_1.weight"):
            size = network.config.hidden_size
            values[:, :size] = int8(values[:, :size])
        elif name.startswith(("encoder.", "prompt_projector")) and values.ndim > 1:
            values = int8(values) if values.numel() > 2048 else values
        parameter.data = values
    return changed


def int8(values: torch.Tensor) -> torch.Tensor:
    """Symmetric, a scale for each output; coremltools divides in fp16."""
    rows = values.reshape(len(values), -1).half()
    scale = (rows.float().abs().amax(dim=1, keepdim=True) / 127).half()
    return ((rows / scale).round().float() * scale.float()).reshape(values.shape)


@torch.no_grad()
def reference_tokens(network: Network, audio: np.ndarray[Any, Any], frames: int) -> list[int]:
    """Greedy tokens of whole chunks of audio, each with features of its own."""
    config, samples = network.config, frames * 1280
    slot = torch.tensor([config.prompt_id(LANGUAGE)])
    state = initial_uniform_state(network.encoder, 1, CONTEXT[0])
    tables = [table.half().float() for table in network.encoder.position_tables(CONTEXT[0], frames)]
    history = torch.zeros(9, config.num_mel_bins)
    predicted, lstm = network.decoder(torch.tensor([[config.blank_id]]), network.initial_predictor_state(1))
    tokens: list[int] = []
    for start in range(0, len(audio), samples):
        chunk = np.pad(audio[start : start + samples], (0, max(0, start + samples - len(audio))))
        window = torch.cat([history, torch.from_numpy(log_mel(chunk))])
        history = window[-9:]
        encoded, _, state = uniform_step(
            network.encoder, window[None], torch.tensor([len(window)]), state, torch.tensor([CONTEXT]), tables
        )
        for frame in network.project(encoded, slot)[0]:
            for _ in range(10):
                token = int(network.joint(frame, predicted[0, 0]).argmax())
                if token == config.blank_id:
                    break
                tokens.append(token)
                predicted, lstm = network.decoder(torch.tensor([[token]]), lstm)
    return tokens


def test_published_host_code_hears_what_the_reference_hears(
    shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("coremltools", reason="the extra coreml is not installed")
    bundle, network = small_coreml_bundle("sharded", "int8"), small_coreml_network(True)
    transcribe = published_transcribe(shared_dir, bundle, tmp_path, monkeypatch)
    audio, _ = soundfile.read(CLIP, dtype="float32")
    metadata = json.loads((bundle / "metadata.json").read_text())
    tokens = reference_tokens(rounded(network), audio, metadata["encoder_frames"])
    pieces = json.loads((bundle / "tokenizer.json").read_text())
    tags = set(metadata["lang_tag_token_ids"])
    expected = "".join(pieces[str(token)] for token in tokens if token not in tags).replace("▁", " ").strip()
    assert len(expected.split()) > 5
    assert transcribe(audio, LANGUAGE) == expected
    assert transcribe(audio, "en-US") != expected
