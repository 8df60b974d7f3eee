"""`Engine`: lends arena slots to streams and steps many of them in one encoder call."""

from __future__ import annotations

import heapq
import threading
import time

import numpy as np

from nemostream.config import FRAME_MS, check_att_context
from nemostream.decoding import Decoder, GreedyDecoder
from nemostream.engine.stream import Stream
from nemostream.errors import ContextError
from nemostream.runtimes.protocol import FixedRuntime, Runtime

TokenFrames = list[tuple[int, int]]  # (token id, encoder frame)


class Engine:
    """Runs streams on one runtime. Calls from several threads take turns.

    Attributes:
        encode_seconds: time that all steps so far spent in the encoder.
        decode_seconds: and in the decoder.
    """

    def __init__(self, runtime: Runtime, decoder: GreedyDecoder | None = None) -> None:
        self.runtime = runtime
        self._decoder = decoder or GreedyDecoder(runtime)
        self._free: list[int] = []
        self._lock = threading.Lock()
        self.encode_seconds = self.decode_seconds = 0.0

    def open(self, prompt_id: int, att_context: tuple[int, int], decoder: Decoder | None = None) -> Stream:
        """Begin a stream; the arena grows when no slot is free.

        Args:
            prompt_id: language slot.
            att_context: (left, right) context in encoder frames.
            decoder: of this stream alone, instead of the engine's.

        Raises:
            ContextError: if the context can't stream, or the runtime has no room for it.
        """
        left, right = att_context
        check_att_context(left, right)
        runtime = self.runtime
        frames = self.chunk_frames(att_context)
        if isinstance(runtime, FixedRuntime) and att_context != runtime.att_context:
            raise ContextError(
                f"A context of [{left}, {right}] frames was asked for, but this bundle was made for "
                f"{list(runtime.att_context)} and calls of {frames * FRAME_MS} ms; leave the latency out, or "
                "convert the checkpoint again."
            )
        if left > runtime.left_context:
            raise ContextError(
                f"A left context of {left} frames was asked for, but this model was loaded with room for "
                f"{runtime.left_context}."
            )
        if runtime.max_frames is not None and frames > runtime.max_frames:
            raise ContextError(
                f"A right context of {right} frames needs calls of {frames} frames, but this bundle takes "
                f"{runtime.max_frames} at most."
            )
        with self._lock:
            if not self._free:
                self._grow()
            slot = heapq.heappop(self._free)
            runtime.reset(slot)
        return Stream.begin(slot, prompt_id, att_context, runtime.config, runtime.framing, decoder, frames)

    def close(self, stream: Stream) -> None:
        """Give a stream's slot back. It must not be stepped afterwards."""
        with self._lock:
            heapq.heappush(self._free, stream.slot)

    def chunk_frames(self, att_context: tuple[int, int]) -> int:
        """Encoder frames in a chunk: right + 1, or what the runtime takes if its shapes are fixed."""
        return self.runtime.call_frames if isinstance(self.runtime, FixedRuntime) else att_context[1] + 1

    def max_chunks(self, stream: Stream) -> int:
        """The most chunks of this stream that one call of the runtime can take."""
        if self.runtime.max_frames is None:
            return 2**31
        return self.runtime.max_frames // stream.chunk_frames

    def step(self, streams: list[Stream], chunks: int = 1) -> list[TokenFrames]:
        """Encode and decode up to ``chunks`` chunks of every stream.

        Streams may differ in clock, language and context. Those with calls of one size share an encoder
        call.

        Returns:
            for each stream its new tokens.
        """
        sizes: dict[int, list[int]] = {}
        taken = [min(chunks, stream.framer.ready(), self.max_chunks(stream)) for stream in streams]
        for row, stream in enumerate(streams):
            if taken[row]:
                sizes.setdefault(taken[row] * stream.chunk_frames, []).append(row)
        results: list[TokenFrames] = [[] for _ in streams]
        for rows in sizes.values():
            group = [streams[row] for row in rows]
            for row, tokens in zip(rows, self._step_group(group, [taken[row] for row in rows]), strict=True):
                results[row] = tokens
        return results

    def _step_group(self, streams: list[Stream], chunks: list[int]) -> list[TokenFrames]:
        calls = [stream.framer.take(count) for stream, count in zip(streams, chunks, strict=True)]
        slots = [stream.slot for stream in streams]
        with self._lock:
            begin = time.perf_counter()
            encoded, lengths = self.runtime.encode(
                slots,
                np.stack([call.mel for call in calls]),
                np.array([call.length for call in calls], np.int64),
                np.array([stream.prompt_id for stream in streams], np.int64),
                np.array([stream.att_context for stream in streams], np.int64),
            )
            encoded_at = time.perf_counter()
            shared = [row for row, stream in enumerate(streams) if stream.decoder is None]
            results: list[TokenFrames] = [[] for _ in streams]
            groups: list[tuple[Decoder | GreedyDecoder, list[int]]] = (
                [(self._decoder, shared)] if shared else []
            )
            own = [
                (stream.decoder, [row]) for row, stream in enumerate(streams) if stream.decoder is not None
            ]
            for decoder, rows in [*groups, *own]:
                hypotheses = [streams[row].hypothesis for row in rows]
                tokens = decoder.decode(
                    [slots[row] for row in rows], hypotheses, encoded[rows], lengths[rows]
                )
                for row, emitted in zip(rows, tokens, strict=True):
                    results[row] = emitted
            self.encode_seconds += encoded_at - begin
            self.decode_seconds += time.perf_counter() - encoded_at
            return results

    def _grow(self) -> None:
        before = self.runtime.slots
        after = max(1, 2 * before)
        self.runtime.resize(after)
        for slot in range(before, after):
            heapq.heappush(self._free, slot)
