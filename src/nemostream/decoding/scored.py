"""Greedy decoding that keeps the probability of every token, and can favour phrases.

The tokens are those of `GreedyDecoder`, unless phrases are given. It asks the joint for logits instead of
tokens, which costs more, so a stream gets it only when it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from nemostream.decoding.boosting import PhraseTree
from nemostream.decoding.greedy import Hypothesis
from nemostream.runtimes.protocol import Float32, Int64, Runtime


@dataclass
class ScoredHypothesis(Hypothesis):
    """Decoder state of one stream.

    Attributes:
        node: place in the tree of phrases.
    """

    node: int = 0


class ScoredGreedyDecoder:
    """`nemostream.decoding.decoder.Decoder`, greedy.

    Whether something is said at a frame is decided without phrases, and only what is said is decided with
    them. So a phrase cannot appear in silence, nor be repeated because it is favoured.

    Args:
        runtime: gives predictor and joint.
        tree: phrases to favour, or None.
        window: encoder frames per call of the joint.
    """

    def __init__(self, runtime: Runtime, tree: PhraseTree | None = None, window: int = 8) -> None:
        self._runtime, self._tree, self._window = runtime, tree, window
        self._blank = runtime.config.blank_id
        self._max_symbols = runtime.config.max_symbols

    def begin(self) -> ScoredHypothesis:
        """State of a stream that has heard nothing."""
        return ScoredHypothesis()

    def decode(
        self, slots: list[int], hypotheses: list[Hypothesis], encoded: Float32, lengths: Int64
    ) -> list[list[tuple[int, int]]]:
        """See `GreedyDecoder.decode`; fills `Hypothesis.log_probs`."""
        return [
            self._decode_one(slot, cast(ScoredHypothesis, hypothesis), frames[:length])
            for slot, hypothesis, frames, length in zip(slots, hypotheses, encoded, lengths, strict=True)
        ]

    def finish(self, hypothesis: Hypothesis) -> list[tuple[int, int]]:
        """Nothing is ever held back."""
        hypothesis.log_probs = []
        return []

    def _decode_one(self, slot: int, hypothesis: ScoredHypothesis, encoded: Float32) -> list[tuple[int, int]]:
        if hypothesis.predicted is None:
            hypothesis.predicted = self._predict(slot, self._blank)
        emitted: list[tuple[int, int]] = []
        hypothesis.log_probs = []
        position = symbols = 0
        while position < len(encoded):
            window = np.ascontiguousarray(encoded[None, position : position + self._window])
            logits = self._runtime.joint_logits(window, hypothesis.predicted[None])[0]
            emits = logits.argmax(axis=1) != self._blank
            offset = int(emits.argmax()) if emits.any() else len(logits)
            position += offset
            if offset:
                symbols = 0
            if not emits.any():
                continue
            token, log_prob = self._choose(logits[offset], hypothesis)
            emitted.append((token, hypothesis.frames + position))
            hypothesis.log_probs.append(log_prob)
            hypothesis.predicted = self._predict(slot, token)
            symbols += 1
            if symbols == self._max_symbols:
                position, symbols = position + 1, 0
        hypothesis.frames += len(encoded)
        return emitted

    def _choose(self, logits: Float32, hypothesis: ScoredHypothesis) -> tuple[int, float]:
        """The token for logits [V + 1] whose largest is not the blank's, and its log-probability."""
        if self._tree is None:
            token = int(logits.argmax())
        else:
            favoured = logits[: self._blank].astype(np.float64)
            step = self._tree.step(hypothesis.node)
            # what is said cannot be taken back if the phrase does not go on: favour its beginning less
            gains = np.maximum(step.gains, 0.0) * step.done
            favoured[step.tokens] += gains
            token = int(favoured.argmax())
            hypothesis.node = step.next_node(token)
        return token, float(log_softmax(logits)[token])

    def _predict(self, slot: int, token: int) -> Float32:
        predicted: Float32 = self._runtime.predict([slot], np.array([token], np.int64))[0].copy()
        return predicted


def log_softmax(logits: Float32) -> NDArray[np.float64]:
    """Log-probabilities of logits [..., V + 1], in double precision so that their order stays."""
    wide: NDArray[np.float64] = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide
