"""The systems that are compared, each behind the same few calls.

A system runs streams of one latency and tells how long each step took. Waiting threads sleep where there is a
switch for it (ours, PyTorch's OpenMP); sherpa-onnx has none, and is alone when it is measured.
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
from nemostream.engine.model import Model
from nemostream.features import IncrementalLogMel
from nemostream.runtimes.onnx import OnnxRuntime
from nemostream.runtimes.protocol import Float32


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
        threads: inside operators.
        workers: shares of the streams that run at the same time, see `OnnxRuntime`.
    """

    def __init__(self, folder: Path, right: int, threads: int, workers: int = 1) -> None:
        self.name = f"nemostream {folder.name.rpartition('-')[2]}"
        self.runtime = OnnxRuntime(folder, threads=threads, workers=workers, verify=False)
        self.model = Model(self.runtime)
        left = self.runtime.left_context
        self.context = (left - left % (right + 1), right)

    def steps(self, audio: Sequence[Float32], streams: int = 1) -> list[float]:
        """See `System`."""
        engine, taken = self.model.engine, []
        opened = [engine.open(0, self.context) for _ in range(streams)]
        for packet in audio:
            began = time.perf_counter()
            for stream in opened:
                stream.feed(packet)
            if ready := [stream for stream in opened if stream.framer.ready()]:
                engine.step(ready)
            taken.append(time.perf_counter() - began)
        for stream in opened:
            engine.close(stream)
        return taken

    def parts(self, audio: Sequence[Float32], streams: int) -> dict[str, float]:
        """Seconds for features, encoder and decoding of that many streams, and how many tokens they gave."""
        engine, clock = self.model.engine, time.perf_counter
        parts = {"features": 0.0, "encoder": 0.0, "decoding": 0.0, "tokens": 0.0}
        encode = self.runtime.encode

        def timed(*arguments: Any) -> Any:
            began = clock()
            result = encode(*arguments)
            parts["encoder"] += clock() - began
            return result

        self.runtime.encode = timed  # type: ignore[method-assign]
        opened = [engine.open(0, self.context) for _ in range(streams)]
        for packet in audio:
            began = clock()
            for stream in opened:
                stream.feed(packet)
            fed, before = clock(), parts["encoder"]
            parts["features"] += fed - began
            parts["tokens"] += sum(map(len, engine.step(opened)))
            parts["decoding"] += clock() - fed - (parts["encoder"] - before)
        for stream in opened:
            engine.close(stream)
        self.runtime.encode = encode  # type: ignore[method-assign]
        return parts

    def file(self, samples: Float32) -> float:
        """Seconds for a whole recording."""
        began = time.perf_counter()
        self.model.transcribe(samples, att_context_size=self.context)
        return time.perf_counter() - began


class Sherpa:
    """sherpa-onnx's own wheel on its own layout of the same weights.

    Args:
        folder: the layout.
        threads: inside operators.
        workers: recognisers, each with its own copy of the weights and a share of the streams.
    """

    def __init__(self, folder: Path, threads: int, workers: int = 1) -> None:
        import sherpa_onnx

        self.name = f"sherpa-onnx {'int8' if folder.name.endswith('int8') else 'fp32'}"
        encoder, decoder, joiner = (str(folder / name) for name in GRAPHS)
        self.recognizers = [
            sherpa_onnx.OnlineRecognizer.from_transducer(
                tokens=str(folder / "tokens.txt"),
                encoder=encoder,
                decoder=decoder,
                joiner=joiner,
                num_threads=threads,
                sample_rate=SAMPLE_RATE,
                feature_dim=128,
                decoding_method="greedy_search",
            )
            for _ in range(workers)
        ]

    def steps(self, audio: Sequence[Float32], streams: int = 1) -> list[float]:
        """See `System`."""
        count = len(self.recognizers)
        shares = [
            (recognizer, [recognizer.create_stream() for _ in range(number, streams, count)])
            for number, recognizer in enumerate(self.recognizers)
        ]
        taken = []
        with ThreadPoolExecutor(count) as pool:
            for packet in audio:
                began = time.perf_counter()
                for share in [pool.submit(_decode, *share, packet) for share in shares]:
                    share.result()
                taken.append(time.perf_counter() - began)
        return taken


def _decode(recognizer: Any, streams: Sequence[Any], packet: Float32) -> None:
    for stream in streams:
        stream.accept_waveform(SAMPLE_RATE, packet)
    while ready := [stream for stream in streams if recognizer.is_ready(stream)]:
        recognizer.decode_streams(ready)


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
