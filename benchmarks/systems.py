"""The systems that are compared, each behind the same few calls.

A system runs streams of one latency and tells how long each step took. Threads never spin, for anyone: two
spinning pools on one machine ruin both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.prepare import GRAPHS
from nemostream.config import SAMPLE_RATE
from nemostream.engine.engine import Engine
from nemostream.engine.model import Model
from nemostream.engine.stream import Stream
from nemostream.features import IncrementalLogMel
from nemostream.runtimes.onnx import OnnxRuntime
from nemostream.runtimes.protocol import Float32

_SEED = 0


def sound(seconds: float) -> Float32:
    """Noise [N] at 16 kHz whose loudness changes ten times a second."""
    generator = np.random.default_rng(_SEED)
    loudness = np.repeat(generator.random(int(seconds * 10) + 1), SAMPLE_RATE // 10).astype(np.float32)
    noise = generator.standard_normal(int(seconds * SAMPLE_RATE), dtype=np.float32)
    return noise * loudness[: noise.size] * np.float32(0.2)


def packets(samples: Float32, milliseconds: int) -> list[Float32]:
    """Whole packets of one chunk each."""
    size = SAMPLE_RATE * milliseconds // 1000
    return [samples[start : start + size] for start in range(0, len(samples) - size + 1, size)]


class System(Protocol):
    """One system at one latency.

    Attributes:
        name: for tables.
    """

    name: str

    def steps(self, audio: Sequence[Float32], streams: int = 1) -> list[float]:
        """Feed the packets to that many streams together; returns the seconds of every step."""


class Nemostream:
    """Our ONNX bundle through the engine: features, encoder and decoding.

    Args:
        folder: the bundle.
        right: right context, which sets the latency.
        threads: of one worker.
        workers: threads that each run a share of the streams, on one copy of the weights. For many streams
            this is better than threads inside operators, which wait for each other thousands of times.
    """

    def __init__(self, folder: Path, right: int, threads: int, workers: int = 1) -> None:
        self.name = f"nemostream {folder.name.rpartition('-')[2]}"
        self.runtime = OnnxRuntime(folder, threads=threads, verify=False)
        self.model = Model(self.runtime)
        self.models = [self.model, *(self.model.sibling() for _ in range(workers - 1))]
        self.right = right

    def steps(self, audio: Sequence[Float32], streams: int = 1) -> list[float]:
        """See `System`."""
        left = self.runtime.left_context
        context = (left - left % (self.right + 1), self.right)
        shares = [
            (model.engine, [model.engine.open(0, context) for _ in range(number, streams, len(self.models))])
            for number, model in enumerate(self.models)
        ]
        taken = []
        with ThreadPoolExecutor(len(self.models)) as pool:
            for packet in audio:
                began = time.perf_counter()
                done = [pool.submit(_step, engine, opened, packet) for engine, opened in shares]
                for share in done:
                    share.result()
                taken.append(time.perf_counter() - began)
        for engine, opened in shares:
            for stream in opened:
                engine.close(stream)
        return taken

    def file(self, samples: Float32) -> float:
        """Seconds for a whole recording."""
        began = time.perf_counter()
        left = self.runtime.left_context
        self.model.transcribe(samples, att_context_size=(left - left % (self.right + 1), self.right))
        return time.perf_counter() - began


def _step(engine: Engine, streams: list[Stream], packet: Float32) -> None:
    for stream in streams:
        stream.feed(packet)
    ready = [stream for stream in streams if stream.framer.ready()]
    if ready:
        engine.step(ready)


class Sherpa:
    """sherpa-onnx's own wheel on its own layout of the same weights."""

    def __init__(self, folder: Path, threads: int) -> None:
        import sherpa_onnx

        self.name = f"sherpa-onnx {'int8' if folder.name.endswith('int8') else 'fp32'}"
        encoder, decoder, joiner = (str(folder / name) for name in GRAPHS)
        self.recognizer = sherpa_onnx.OnlineRecognizer.from_transducer(
            tokens=str(folder / "tokens.txt"),
            encoder=encoder,
            decoder=decoder,
            joiner=joiner,
            num_threads=threads,
            sample_rate=SAMPLE_RATE,
            feature_dim=128,
            decoding_method="greedy_search",
        )

    def steps(self, audio: Sequence[Float32], streams: int = 1) -> list[float]:
        """See `System`."""
        opened = [self.recognizer.create_stream() for _ in range(streams)]
        taken = []
        for packet in audio:
            began = time.perf_counter()
            for stream in opened:
                stream.accept_waveform(SAMPLE_RATE, packet)
            while ready := [stream for stream in opened if self.recognizer.is_ready(stream)]:
                self.recognizer.decode_streams(ready)
            taken.append(time.perf_counter() - began)
        return taken


class Transformers:
    """Hugging Face transformers' own streaming generation, fp32; features are not in its times."""

    name = "transformers fp32"

    def __init__(self, folder: Path, right: int, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch, self._right = torch, right
        self._model: Any = transformers.AutoModelForRNNT.from_pretrained(folder).eval()

    def steps(self, audio: Sequence[Float32], streams: int = 1) -> list[float]:
        """See `System`; one stream only."""
        mel = self._mel(np.concatenate(audio))
        taken: list[float] = []
        with self._torch.no_grad():
            self._model.generate(
                input_features=self._chunks(mel, taken),
                num_lookahead_tokens=self._right,
                max_new_tokens=100_000,
                prompt_ids=self._torch.tensor([0]),
            )
        return taken

    def file(self, samples: Float32) -> float:
        """Seconds for a whole recording, offline."""
        mel = self._mel(samples)
        mask = self._torch.ones(mel.shape[:2], dtype=self._torch.long)
        began = time.perf_counter()
        with self._torch.no_grad():
            self._model.generate(
                input_features=mel,
                attention_mask=mask,
                num_lookahead_tokens=self._right,
                prompt_ids=self._torch.tensor([0]),
                max_new_tokens=100_000,
            )
        return time.perf_counter() - began

    def _mel(self, samples: Float32) -> Any:
        return self._torch.from_numpy(IncrementalLogMel().feed(samples))[None]

    def _chunks(self, mel: Any, taken: list[float]) -> Iterator[Any]:
        start, size = 0, 1 + 8 * self._right
        while start + size <= mel.shape[1]:
            began = time.perf_counter()
            yield mel[:, start : start + size]
            taken.append(time.perf_counter() - began)  # up to the moment that the next one is asked for
            start, size = start + size, 8 * (self._right + 1)
