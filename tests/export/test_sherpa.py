"""The sherpa-onnx layout: its graphs against the reference in uniform framing, and in sherpa-onnx's wheel."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from nemostream.engine.engine import Engine
from nemostream.export.measure import edit_distance
from nemostream.export.sherpa import DECODER, ENCODER, JOINER, export_sherpa
from nemostream.features import log_mel
from nemostream.framing import UniformFramer
from nemostream.runtimes.protocol import Float32
from nemostream.runtimes.torch import TorchRuntime, load_network
from nemostream.text.tokenizer import Tokenizer
from tests.bundles import _folder
from tests.models import PIECES, small_checkpoint, small_config

CHUNK = 4


@cache
def sherpa_folder() -> Path:
    folder = _folder()
    network = load_network(small_checkpoint(small_config()))
    export_sherpa(network, Tokenizer(PIECES), folder, source="random", att_context=(56, CHUNK - 1))
    return folder


def sound(seconds: float) -> Float32:
    """Noise whose loudness changes all the time, so that a random model has something to say."""
    rng = np.random.default_rng(0)
    loudness = np.repeat(rng.random(int(seconds * 10)), 1600).astype(np.float32)
    return rng.standard_normal(len(loudness), dtype=np.float32) * loudness * np.float32(0.2)


def reference_tokens(samples: Float32, language: str, max_symbols: int = 10) -> list[int]:
    checkpoint = small_checkpoint(small_config())
    config = dataclasses.replace(checkpoint.config, max_symbols=max_symbols)
    runtime = TorchRuntime(dataclasses.replace(checkpoint, config=config), framing="uniform")
    engine = Engine(runtime)
    stream = engine.open(runtime.config.prompt_id(language), (56, CHUNK - 1))
    stream.feed(samples)
    stream.finish()
    tokens: list[int] = []
    while stream.framer.ready():
        tokens += [token for token, _ in engine.step([stream])[0]]
    return tokens


class Runner:
    """Greedy decoding with the three graphs, as sherpa-onnx does it: by the places of inputs and outputs."""

    def __init__(self, folder: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.encoder, self.decoder, self.joiner = (
            ort.InferenceSession(str(folder / name), options) for name in (ENCODER, DECODER, JOINER)
        )
        self.metadata = self.encoder.get_modelmeta().custom_metadata_map

    @staticmethod
    def call(session: Any, *values: Any) -> list[Any]:
        names = [spec.name for spec in session.get_inputs()]
        return session.run(None, dict(zip(names, values, strict=True)))  # type: ignore[no-any-return]

    def dims(self, name: str) -> list[int]:
        return [int(self.metadata[f"{name}_dim{i}"]) for i in (1, 2, 3)]

    def tokens(self, samples: Float32, prompt: int) -> list[int]:
        blank = int(self.metadata["vocab_size"])
        framer = UniformFramer(int(self.metadata["chunk_shift"]) // 8, int(self.metadata["feat_dim"]))
        framer.push(log_mel(samples))
        framer.finish()
        caches: list[Any] = [
            np.zeros((1, *self.dims(name)), np.float32) for name in ("cache_last_channel", "cache_last_time")
        ]
        caches.append(np.zeros(1, np.int64))
        shape = (int(self.metadata["pred_rnn_layers"]), 1, int(self.metadata["pred_hidden"]))
        state = [np.zeros(shape, np.float32)] * 2
        predicted, state = self.predict(blank, state)
        found = []
        while framer.ready():
            call = framer.take(1)
            assert len(call.mel) == int(self.metadata["window_size"])
            encoded, lengths, *caches = self.call(
                self.encoder, call.mel.T[None], np.array([call.length]), *caches, np.array([prompt])
            )
            for frame in range(int(lengths[0])):
                for _ in range(10):
                    logits = self.call(self.joiner, encoded[:, :, frame : frame + 1], predicted)[0]
                    token = int(logits[0, 0, 0].argmax())
                    if token == blank:
                        break
                    found.append(token)
                    predicted, state = self.predict(token, state)
        return found

    def predict(self, token: int, state: list[Any]) -> tuple[Any, list[Any]]:
        targets, length = np.array([[token]], np.int32), np.array([1], np.int32)
        predicted, _, *new = self.call(self.decoder, targets, length, *state)
        return predicted, new


@pytest.mark.parametrize(("language", "prompt"), [("de-DE", 9), ("auto", 101)])
def test_graphs_give_the_tokens_of_uniform_framing(language: str, prompt: int) -> None:
    samples = sound(6.0)
    expected = reference_tokens(samples, language)
    assert len(expected) > 20
    assert Runner(sherpa_folder()).tokens(samples, prompt) == expected


def sherpa_tokens(samples: Float32, language: str) -> list[int]:
    sherpa = pytest.importorskip("sherpa_onnx")
    folder = sherpa_folder()
    recognizer = sherpa.OnlineRecognizer.from_transducer(
        tokens=str(folder / "tokens.txt"),
        encoder=str(folder / ENCODER),
        decoder=str(folder / DECODER),
        joiner=str(folder / JOINER),
        num_threads=1,
        sample_rate=16000,
        feature_dim=128,
        decoding_method="greedy_search",
    )
    stream = recognizer.create_stream()
    stream.set_option("language", language)
    stream.accept_waveform(16000, samples)
    stream.accept_waveform(16000, np.zeros(16000, np.float32))  # its tail needs about a second
    stream.input_finished()
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
    return [PIECES.index(piece.replace(" ", "▁")) for piece in recognizer.tokens(stream)]


def test_sherpa_onnx_loads_it_and_decodes() -> None:
    """Its features are Kaldi's and it emits one token a frame at most, so only part can be the same.

    On noise a random model has 28 % of its tokens in common with the reference limited likewise; that every
    number is right is what the test above is for.
    """
    samples = sound(6.0)
    expected, found = reference_tokens(samples, "de-DE", max_symbols=1), sherpa_tokens(samples, "de-DE")
    assert 60 < len(found) <= 75
    assert 1 - edit_distance(expected, found) / max(len(expected), len(found)) > 0.2
