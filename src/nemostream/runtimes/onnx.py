"""ONNX Runtime as a runtime, for bundles of `nemostream.export.onnx`; needs numpy and onnxruntime only."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemostream.checkpoints.bundle import TOKENS, read_manifest
from nemostream.config import SUBSAMPLING_FACTOR, ModelConfig
from nemostream.errors import BackendError
from nemostream.runtimes import onnx_graphs as graphs
from nemostream.runtimes.calls import check_call
from nemostream.runtimes.history import History
from nemostream.runtimes.onnx_decoder import (
    CPU,
    OnnxDecoder,
    contiguous,
    failure,
    load_session,
    session_options,
)
from nemostream.runtimes.protocol import Float32, Framing, Int64, PredictorState
from nemostream.text.tokenizer import Tokenizer

MOST_DEFAULT_THREADS = 4  # more gain little on the small matrix products of a live stream
LEAST_ROWS_PER_WORKER = 8  # encoder frames; fewer are no faster in two halves, which read the weights twice

Array = NDArray[Any]
# what one call binds to one name; the arrays have to live until it has run
Bindings = list[tuple[str, Array]]


class OnnxRuntime:
    """`nemostream.runtimes.protocol.Runtime` on ONNX Runtime, in native framing.

    Args:
        folder: the bundle.
        threads: threads inside an operator; None takes the physical cores that this process may use, at most
            `MOST_DEFAULT_THREADS`, or 1 if there are several workers.
        workers: shares that a call of many streams is divided into, each of which runs on a thread of its own
            on the same weights. For many streams, one thread and a worker per core: threads inside operators
            wait for each other at every one of the thousands of a step.
        spin: let threads spin between operators instead of sleeping: a little faster on a machine that runs
            nothing else, and ruinous for both if two programs on one machine do it.
        affinity: processors of the threads after the first, in ONNX Runtime's notation, counted from 1: "1;2"
            or "1-4;5-8"; None leaves it to the operating system.
        left_context: room for attention context in a slot; None is the largest that was trained, which is
            also the most that a bundle allows.
        providers: ONNX Runtime execution providers, in order of preference.
        verify: check the hash of every file first.

    Raises:
        CheckpointError: if the bundle is incomplete, altered, or not readable.
        BackendError: if it is for another runtime, ONNX Runtime cannot load it, or an argument is wrong.
    """

    name = "onnx"
    framing: Framing = "native"

    def __init__(
        self,
        folder: Path,
        *,
        threads: int | None = None,
        workers: int = 1,
        spin: bool = False,
        affinity: str | None = None,
        left_context: int | None = None,
        providers: Sequence[str] = CPU,
        verify: bool = True,
    ) -> None:
        manifest = read_manifest(folder, verify)
        if manifest.runtime != self.name or manifest.framing != self.framing:
            raise BackendError(
                f"{folder} is a bundle for {manifest.runtime} in {manifest.framing} framing; "
                "ONNX Runtime runs onnx bundles in native framing."
            )
        self.config: ModelConfig = manifest.config
        self.max_frames: int | None = manifest.max_frames
        largest = max(left for left, _ in self.config.att_context_sizes)
        self.left_context = largest if left_context is None else left_context
        if not 0 <= self.left_context <= largest:
            raise BackendError(
                f"This bundle has room for a left context of 0 to {largest}, not {left_context}."
            )
        for what, count in (("threads", threads), ("workers", workers)):
            if count is not None and count < 1:
                raise BackendError(f"{count} {what} were asked for; 1 or more were expected.")
        if threads is None:
            threads = default_threads() if workers == 1 else 1
        if affinity is not None and threads == 1:
            raise BackendError(
                "An affinity is for the threads after the first, and there is only one; ask for more "
                "threads, or start the program with taskset."
            )
        if affinity is not None:
            _check_affinity(affinity, threads - 1)
        self.tokenizer = Tokenizer.from_tokens_txt(folder / TOKENS, self.config.vocab_size)
        options = session_options(threads, spin, affinity)
        self._encoder = load_session(folder / graphs.ENCODER, options, providers)
        self._decoder = OnnxDecoder(
            folder / graphs.PREDICTOR, folder / graphs.JOINT, self.config, options, providers
        )
        self.workers = workers
        self._pool = ThreadPoolExecutor(workers, "nemostream-onnx")  # starts threads when they are needed
        self._begin()

    def _begin(self) -> None:
        """An empty arena, and names that are needed at every call."""
        self.slots = 0
        self._bindings = [self._encoder.io_binding() for _ in range(self.workers)]
        self._histories = self._make_histories()
        shapes = {spec.name: spec.shape[1:] for spec in self._encoder.get_inputs()}
        self._stem = [np.zeros((0, *shapes[name]), np.float32) for name in graphs.stem_inputs()]
        self._new_names = [
            name for kind in graphs.KINDS for name in graphs.layer_outputs(kind, self.config.num_layers)
        ]
        self._frames = np.zeros(0, np.int64)

    def sibling(self) -> OnnxRuntime:
        """A runtime with an arena of its own on the same weights, for another thread at the same time."""
        other = copy.copy(self)
        other._decoder = self._decoder.sibling()
        other._begin()
        return other

    def resize(self, slots: int) -> None:
        """Grow the arena to ``slots`` slots; what the old ones hold stays."""
        more = slots - self.slots
        if more <= 0:
            return
        for history, names in zip(self._histories, self._history_inputs(), strict=True):
            history.resize(slots)
            for binding in self._bindings:
                self._bind(binding.bind_input, zip(names, history.tables(), strict=True))
        self._stem = [_grow(array, more) for array in self._stem]
        self._frames = _grow(self._frames, more)
        self._decoder.resize(slots)
        self.slots = slots

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""
        for history in self._histories:
            history.reset(slot)
        for array in (*self._stem, self._frames):
            array[slot] = 0
        self._decoder.reset(slot)

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        """See `nemostream.runtimes.protocol.Runtime.encode`.

        Raises:
            BackendError: if the call is not a whole number of frames, longer than ``max_frames``, or needs
                more left context than there is room for.
        """
        frames, batch = check_call(self, mel, att_context), len(slots)
        shares = min(self.workers, batch, max(1, batch * frames // LEAST_ROWS_PER_WORKER))
        if shares == 1:
            return self._encode(0, slots, mel, mel_lengths, prompt_ids, att_context)
        edges = [share * batch // shares for share in range(shares + 1)]
        running = [
            self._pool.submit(
                self._encode,
                *(worker, slots[begin:end], mel[begin:end], mel_lengths[begin:end]),
                *(prompt_ids[begin:end], att_context[begin:end]),
            )
            for worker, (begin, end) in enumerate(pairwise(edges))
        ]
        wait(running)  # all of them, also if one fails, since they write into this arena
        encoded, lengths = zip(*(share.result() for share in running), strict=True)
        return np.concatenate(encoded), np.concatenate(lengths)

    def _encode(
        self,
        worker: int,
        slots: list[int],
        mel: Float32,
        mel_lengths: Int64,
        prompt_ids: Int64,
        att_context: Int64,
    ) -> tuple[Float32, Int64]:
        """One worker's share of a call."""
        frames, seen, batch = mel.shape[1] // SUBSAMPLING_FACTOR, self._frames[slots], len(slots)
        past, gated = self._histories
        inputs: Bindings = [
            ("mel", contiguous(mel, np.float32)),
            ("mel_lengths", contiguous(mel_lengths, np.int64)),
            ("att_context", contiguous(att_context, np.int64)),
            ("frames", seen),
            ("past_rows", past.rows(slots, seen)),
            ("gated_rows", gated.rows(slots, seen)),
            *zip(graphs.stem_inputs(), [_rows(array, slots) for array in self._stem], strict=True),
        ]
        if self.config.has_prompt:
            inputs.append(("prompt_ids", contiguous(prompt_ids, np.int64)))
        encoded = np.empty((batch, frames, self.config.joint_hidden_size), np.float32)
        lengths = np.empty(batch, np.int64)
        stem = [np.empty((batch, *array.shape[1:]), np.float32) for array in self._stem]
        outputs: Bindings = [("encoded", encoded), ("lengths", lengths)]
        outputs += zip(graphs.stem_outputs(), stem, strict=True)
        new = [history.places(batch, frames, worker) for history in self._histories]
        outputs += zip(self._new_names, [series for places in new for series in places], strict=True)
        self._run_encoder(self._bindings[worker], inputs, outputs)
        for array, value in zip(self._stem, stem, strict=True):
            array[slots] = value
        for history, places in zip(self._histories, new, strict=True):
            history.keep(slots, seen, places)
        self._frames[slots] += lengths
        return encoded, lengths

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.predict`."""
        return self._decoder.predict(slots, tokens)

    def predict_from(self, state: PredictorState, tokens: Int64) -> tuple[Float32, PredictorState]:
        """See `nemostream.runtimes.protocol.ForkingRuntime.predict_from`."""
        return self._decoder.predict_from(state, tokens)

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """See `nemostream.runtimes.protocol.Runtime.joint`."""
        return self._decoder.joint(encoded, predicted)

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.joint_logits`."""
        return self._decoder.joint_logits(encoded, predicted)

    def _make_histories(self) -> tuple[History, History]:
        """Histories of keys and values, and of the convolutions."""
        config, layers = self.config, self.config.num_layers
        types = {spec.name: spec.type for spec in self._encoder.get_inputs()}
        dtype = np.float16 if "float16" in types[graphs.layer_inputs("keys", 1)[0]] else np.float32
        room = max(self.left_context, 1)  # a frame that nobody sees is simpler than a tensor without elements
        return (
            History(2 * layers, config.num_heads, room, config.head_size, dtype),
            History(layers, 1, config.conv_kernel_size - 1, config.hidden_size, dtype),
        )

    def _history_inputs(self) -> tuple[list[str], list[str]]:
        """The graph's names of the series of each history."""
        keys, values, gated = (graphs.layer_inputs(kind, self.config.num_layers) for kind in graphs.KINDS)
        return keys + values, gated

    def _run_encoder(self, binding: Any, inputs: Bindings, outputs: Bindings) -> None:
        try:
            self._bind(binding.bind_input, inputs)
            self._bind(binding.bind_output, outputs)
            self._encoder.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise failure("ONNX Runtime could not run the encoder", error) from error

    @staticmethod
    def _bind(bind: Callable[..., None], pairs: Iterable[tuple[str, Array]]) -> None:
        for name, array in pairs:
            bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def physical_cores() -> int:
    """Physical cores that this process may use; logical ones where the system does not tell them apart."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def default_threads() -> int:
    """Physical cores that this process may use, at most `MOST_DEFAULT_THREADS`."""
    return min(physical_cores(), MOST_DEFAULT_THREADS)


def _check_affinity(affinity: str, threads: int) -> None:
    """Check ONNX Runtime's notation: for each thread processors ``1``, ``1,3`` or ``1-4``; ``;`` between."""
    processors = os.cpu_count() or 1
    parts = affinity.split(";")
    numbers = [re.fullmatch(r"(\d+)([,-]\d+)*", part.strip()) for part in parts]
    named = [int(number) for number in re.findall(r"\d+", affinity)]
    if len(parts) != threads or not all(numbers) or not all(1 <= number <= processors for number in named):
        raise BackendError(
            f"affinity is {affinity!r}; for each of {threads} threads after the first, processors from 1 to "
            f"{processors} were expected, such as '1;2' for two threads."
        )


def _rows(array: Float32, slots: list[int]) -> Float32:
    """Rows of an array [slots, ...]: a view of one, a copy of several."""
    return array[slots[0] : slots[0] + 1] if len(slots) == 1 else array[slots]


def _grow(array: Array, more: int) -> Array:
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])
