"""`Engine`: lends arena slots to streams and steps many of them in one encoder call."""

from __future__ import annotations

import heapq
import threading

import numpy as np

from nemostream.config import check_att_context
from nemostream.decoding import Decoder, GreedyDecoder
from nemostream.engine.stream import Stream
from nemostream.errors import ContextError
from nemostream.runtimes.protocol import Runtime

TokenFrames = list[tuple[int, int]]  # (token id, encoder frame)


class Engine:
    """Runs streams on one runtime. Calls from several threads take turns."""

    def __init__(self, runtime: Runtime, decoder: GreedyDecoder | None = None) -> None:
        self.runtime = runtime
        self._decoder = decoder or GreedyDecoder(runtime)
        self._free: list[int] = []
        self._lock = threading.Lock()

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
        if left > runtime.left_context:
            raise ContextError(
                f"A left context of {left} frames was asked for, but this model was loaded with room for "
                f"{runtime.left_context}."
            )
        if runtime.max_frames is not None and right + 1 > runtime.max_frames:
            raise ContextError(
                f"A right context of {right} frames needs calls of {right + 1} frames, but this bundle takes "
                f"{runtime.max_frames} at most."
            )
        with self._lock:
            if not self._free:
                self._grow()
            slot = heapq.heappop(self._free)
            runtime.reset(slot)
        return Stream.begin(slot, prompt_id, att_context, runtime.config, runtime.framing, decoder)

    def close(self, stream: Stream) -> None:
        """Give a stream's slot back. It must not be stepped afterwards."""
        with self._lock:
            heapq.heappush(self._free, stream.slot)

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
            encoded, lengths = self.runtime.encode(
                slots,
                np.stack([call.mel for call in calls]),
                np.array([call.length for call in calls], np.int64),
                np.array([stream.prompt_id for stream in streams], np.int64),
                np.array([stream.att_context for stream in streams], np.int64),
            )
            if all(stream.decoder is None for stream in streams):
                hypotheses = [stream.hypothesis for stream in streams]
                return self._decoder.decode(slots, hypotheses, encoded, lengths)
            return [
                (stream.decoder or self._decoder).decode(
                    [stream.slot], [stream.hypothesis], encoded[row : row + 1], lengths[row : row + 1]
                )[0]
                for row, stream in enumerate(streams)
            ]

    def _grow(self) -> None:
        before = self.runtime.slots
        after = max(1, 2 * before)
        self.runtime.resize(after)
        for slot in range(before, after):
            heapq.heappush(self._free, slot)
