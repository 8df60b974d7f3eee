"""Greedy RNN-T decoding of many streams at once.

While the joint answers blank, the predictor does not move, so the joint can be asked about many frames
under the same prediction: all the frames up to a stream's next emission are settled by one call ("label
looping"). How many frames a call looks at, ``window``, changes the cost but never the tokens: 1 is the
textbook loop, 8 is the windowed decode of the CoreML port, None looks at all that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nemostream.runtimes.protocol import Float32, Int64, Runtime


@dataclass
class Hypothesis:
    """Decoder state of one stream.

    Attributes:
        predicted: [J] output of the predictor after the last token, or None before the first call.
        frames: encoder frames decoded so far.
        log_probs: log-probabilities of the tokens that the last call gave, from decoders that keep them.
    """

    predicted: Float32 | None = None
    frames: int = 0
    log_probs: list[float] = field(default_factory=list)


class GreedyDecoder:
    """Decodes with one runtime.

    Args:
        runtime: gives predictor and joint.
        window: encoder frames per call of the joint; None means all that are left.
    """

    def __init__(self, runtime: Runtime, window: int | None = 8) -> None:
        self._runtime = runtime
        self._window = window
        self._blank = runtime.config.blank_id
        self._max_symbols = runtime.config.max_symbols

    def decode(
        self, slots: list[int], hypotheses: list[Hypothesis], encoded: Float32, lengths: Int64
    ) -> list[list[tuple[int, int]]]:
        """Decode the new frames of B streams.

        Args:
            slots: the streams' slots.
            hypotheses: their decoder states, brought up to date in place.
            encoded: [B, N, J] projected encoder frames.
            lengths: [B] valid frames.

        Returns:
            for each stream its new tokens as (token id, frame from the stream's start).
        """
        predicted = self._first_predictions(slots, hypotheses)
        emitted: list[list[tuple[int, int]]] = [[] for _ in slots]
        position = np.zeros(len(slots), np.int64)
        symbols = np.zeros(len(slots), np.int64)  # emitted on the current frame
        while (active := np.flatnonzero(position < lengths)).size:
            left = lengths[active] - position[active]
            width = int(left.max()) if self._window is None else min(self._window, int(left.max()))
            frames = position[active, None] + np.arange(width)
            inside = frames < lengths[active, None]
            windows = encoded[active[:, None], np.where(inside, frames, 0)]
            tokens = self._runtime.joint(windows, predicted[active])
            emits = (tokens != self._blank) & inside
            emitting = emits.any(axis=1)
            offset = np.where(emitting, emits.argmax(axis=1), np.minimum(width, left))

            position[active] += offset
            symbols[active[offset > 0]] = 0
            rows = active[emitting]
            if not rows.size:
                continue
            chosen = tokens[emitting, offset[emitting]]
            for row, token in zip(rows, chosen, strict=True):
                emitted[row].append((int(token), hypotheses[row].frames + int(position[row])))
            predicted[rows] = self._runtime.predict([slots[row] for row in rows], chosen)
            symbols[rows] += 1
            full = rows[symbols[rows] == self._max_symbols]
            position[full] += 1
            symbols[full] = 0
        for row, hypothesis in enumerate(hypotheses):
            hypothesis.predicted = predicted[row].copy()
            hypothesis.frames += int(lengths[row])
        return emitted

    def _first_predictions(self, slots: list[int], hypotheses: list[Hypothesis]) -> Float32:
        """[B, J]; streams that have not begun get the prediction that follows the blank."""
        new = [row for row, hypothesis in enumerate(hypotheses) if hypothesis.predicted is None]
        if new:
            start = np.full(len(new), self._blank, np.int64)
            for row, value in zip(
                new, self._runtime.predict([slots[row] for row in new], start), strict=True
            ):
                hypotheses[row].predicted = value
        return np.stack([h.predicted for h in hypotheses if h.predicted is not None])
