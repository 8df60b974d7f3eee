"""Beam search: several hypotheses of one stream, frame by frame.

At a frame, each hypothesis either ends with a blank or goes on with a token, and what goes on is asked again;
after every round the best ``beam`` of all, ended or not, are kept. With a beam of 1 this is the greedy loop,
decision for decision. Hypotheses that have come to the same tokens by different alignments are added up.

A phrase makes up for what its pieces lack against the best that the frame offers, and hardly for more. Were
every piece paid in full, a long phrase, which is easy to go on with once it is begun, would earn more than
its beginning cost, and be heard in noise and silence.

Text is given out once all hypotheses begin with it, so it is never taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from nemostream.decoding.boosting import PhraseTree
from nemostream.decoding.greedy import Hypothesis
from nemostream.decoding.scored import log_softmax
from nemostream.errors import BackendError
from nemostream.runtimes.protocol import Float32, ForkingRuntime, Int64, PredictorState, Runtime

SURPLUS = 0.1  # share of its gain that a piece has beyond what it lacks, so that it wins and does not tie
MOST_HYPOTHESES = 64
MOST_PENDING = 50  # tokens that may be held back; then those that disagree with the best are dropped


@dataclass(frozen=True)
class _Emission:
    token: int
    frame: int
    log_prob: float


@dataclass(frozen=True)
class _Candidate:
    """One hypothesis: what follows the tokens that were given out, and the predictor's state after it."""

    score: float
    pending: tuple[_Emission, ...]
    predicted: Float32  # [J]
    state: PredictorState  # (h, c), [layers, 1, H] each
    node: int = 0
    owed: float = (
        0.0  # what the phrase that is not finished has gained: it is given back if it does not go on
    )

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(emission.token for emission in self.pending)


@dataclass
class BeamHypothesis(Hypothesis):
    """Decoder state of one stream.

    Attributes:
        candidates: the beam, best first; empty before the first call.
        last_frame: frame of the last token that was given out.
        alternatives: after `BeamDecoder.finish`, (tokens after those that all shared, score), best first.
    """

    candidates: list[_Candidate] = field(default_factory=list)
    last_frame: int = 0
    alternatives: list[tuple[tuple[int, ...], float]] = field(default_factory=list)


class BeamDecoder:
    """`nemostream.decoding.decoder.Decoder` with a beam.

    Args:
        runtime: gives predictor and joint; it has to be a `ForkingRuntime`.
        beam: hypotheses to keep.
        tree: phrases to favour, or None.

    Raises:
        BackendError: if the runtime is none.
    """

    def __init__(self, runtime: Runtime, beam: int, tree: PhraseTree | None = None) -> None:
        if not isinstance(runtime, ForkingRuntime):
            raise BackendError(f"The runtime {runtime.name} cannot search with a beam; leave beam at 1.")
        self._runtime: ForkingRuntime = runtime
        self._beam, self._tree = beam, tree
        self._blank = runtime.config.blank_id
        self._max_symbols = runtime.config.max_symbols

    def begin(self) -> BeamHypothesis:
        """State of a stream that has heard nothing."""
        return BeamHypothesis()

    def decode(
        self, slots: list[int], hypotheses: list[Hypothesis], encoded: Float32, lengths: Int64
    ) -> list[list[tuple[int, int]]]:
        """See `GreedyDecoder.decode`; fills `Hypothesis.log_probs`. Slots are not used."""
        return [
            self._decode_one(cast(BeamHypothesis, hypothesis), frames[:length])
            for hypothesis, frames, length in zip(hypotheses, encoded, lengths, strict=True)
        ]

    def finish(self, hypothesis: Hypothesis) -> list[tuple[int, int]]:
        """Give out what is pending in the best hypothesis."""
        state = cast(BeamHypothesis, hypothesis)
        state.log_probs = []
        ended = [replace(item, score=item.score - item.owed) for item in state.candidates]
        ended.sort(key=lambda item: -item.score)
        state.alternatives = [(item.tokens, item.score) for item in ended]
        state.candidates = ended[:1]
        return self._give_out(state, len(ended[0].pending)) if ended else []

    def _decode_one(self, hypothesis: BeamHypothesis, encoded: Float32) -> list[tuple[int, int]]:
        hypothesis.log_probs = []
        if not hypothesis.candidates:
            hypothesis.candidates = [self._first()]
        given: list[tuple[int, int]] = []
        for vector in encoded:
            hypothesis.candidates = self._frame(hypothesis.candidates, vector, hypothesis.frames)
            hypothesis.frames += 1
            given += self._settle(hypothesis)
        return given

    def _first(self) -> _Candidate:
        config = self._runtime.config
        zeros = np.zeros((config.predictor_layers, 1, config.predictor_hidden_size), np.float32)
        blank = np.array([self._blank], np.int64)
        predicted, state = self._runtime.predict_from((zeros, zeros), blank)
        return _Candidate(0.0, (), predicted[0], state)

    def _frame(self, candidates: list[_Candidate], vector: Float32, frame: int) -> list[_Candidate]:
        """Take all hypotheses over one encoder frame [J]."""
        active, ended = candidates, dict[tuple[int, ...], _Candidate]()
        for _ in range(self._max_symbols):
            grown, blanks = self._expand(active, vector)
            for item in blanks:
                _add(ended, item)
            # as argmax does, a token wins over the blank if both are equally likely
            options = [(-score, token, place) for place, (_, token, score, _) in enumerate(grown)]
            options += [(-item.score, self._blank, -1 - n) for n, item in enumerate(ended.values())]
            best = sorted(options)[: self._beam]
            finished = list(ended.values())
            ended = {}
            for _, _, place in best:
                if place < 0:
                    _add(ended, finished[-1 - place])
            active = self._advance([grown[place] for _, _, place in best if place >= 0], frame)
            if not active:
                break
        for item in active:  # as many tokens as a frame may have: on without a blank
            _add(ended, item)
        return sorted(ended.values(), key=lambda item: -item.score)[: self._beam]

    def _expand(
        self, active: Sequence[_Candidate], vector: Float32
    ) -> tuple[list[tuple[_Candidate, int, float, float]], list[_Candidate]]:
        """Return (hypothesis, token, new score, log-probability) of the best tokens, and what ends here."""
        encoded = np.tile(vector, (len(active), 1, 1))
        predicted = np.stack([item.predicted for item in active])
        log_probs = log_softmax(self._runtime.joint_logits(encoded, predicted)[:, 0])
        grown = []
        for item, row in zip(active, log_probs, strict=True):
            scores = item.score + self._favoured(row, item)
            for token in _largest(scores, self._beam):
                grown.append((item, int(token), float(scores[token]), float(row[token])))
        blanks = [
            replace(item, score=item.score + float(row[self._blank]))
            for item, row in zip(active, log_probs, strict=True)
        ]
        return grown, blanks

    def _favoured(self, log_probs: NDArray[np.float64], item: _Candidate) -> NDArray[np.float64]:
        """Log-probabilities [V] of [V + 1], with what phrases add and take."""
        tokens: NDArray[np.float64] = log_probs[: self._blank]
        if self._tree is None:
            return tokens
        step = self._tree.step(item.node)
        lacking = log_probs.max() - tokens[step.tokens]
        changes = np.where(
            step.gains > 0,
            np.minimum(step.gains, lacking + SURPLUS * step.gains),
            np.minimum(step.open - item.owed, 0.0),
        )
        favoured = tokens - item.owed
        favoured[step.tokens] = tokens[step.tokens] + changes
        return favoured

    def _advance(
        self, chosen: Sequence[tuple[_Candidate, int, float, float]], frame: int
    ) -> list[_Candidate]:
        """Feed each its token, all in one call of the predictor."""
        if not chosen:
            return []
        h, c = (np.concatenate([item.state[part] for item, _, _, _ in chosen], axis=1) for part in (0, 1))
        tokens = np.array([token for _, token, _, _ in chosen], np.int64)
        predicted, (new_h, new_c) = self._runtime.predict_from((h, c), tokens)
        grown = []
        for row, (item, token, score, log_prob) in enumerate(chosen):
            node = self._tree.step(item.node).next_node(token) if self._tree else 0
            owed = item.owed + score - item.score - log_prob
            grown.append(
                _Candidate(
                    score,
                    (*item.pending, _Emission(token, frame, log_prob)),
                    predicted[row],
                    (new_h[:, row : row + 1], new_c[:, row : row + 1]),
                    node,
                    min(owed, self._tree.unfinished(node)) if self._tree else 0.0,
                )
            )
        return grown

    def _settle(self, hypothesis: BeamHypothesis) -> list[tuple[int, int]]:
        """Give out what all hypotheses agree on.

        It is done after every frame, so that the result does not depend on how many come in one call.
        """
        best = hypothesis.candidates[0]
        while len(best.pending) > MOST_PENDING and not _agreed(hypothesis.candidates):
            hypothesis.candidates = [
                item for item in hypothesis.candidates if item.tokens[:1] == best.tokens[:1]
            ]
        return self._give_out(hypothesis, _agreed(hypothesis.candidates))

    @staticmethod
    def _give_out(hypothesis: BeamHypothesis, count: int) -> list[tuple[int, int]]:
        """Take the first ``count`` pending tokens off every hypothesis; times are those of the best."""
        given = []
        for emission in hypothesis.candidates[0].pending[:count]:
            # another hypothesis may have been the best when the token before was given out
            hypothesis.last_frame = max(hypothesis.last_frame, emission.frame)
            given.append((emission.token, hypothesis.last_frame))
            hypothesis.log_probs.append(emission.log_prob)
        hypothesis.candidates = [
            replace(item, pending=item.pending[count:]) for item in hypothesis.candidates
        ]
        return given


def _add(ended: dict[tuple[int, ...], _Candidate], item: _Candidate) -> None:
    """Add a hypothesis, or its probability to the one with the same tokens."""
    other = ended.get(item.tokens)
    if other is None:
        ended[item.tokens] = item
        return
    better = item if item.score > other.score else other
    ended[item.tokens] = replace(better, score=float(np.logaddexp(item.score, other.score)))


def _agreed(candidates: Sequence[_Candidate]) -> int:
    """How many pending tokens all hypotheses begin with."""
    count = 0
    for tokens in zip(*(item.tokens for item in candidates), strict=False):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


def _largest(scores: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Indices of the largest scores; of equal ones the first, as argmax has it."""
    if count == 1:
        return np.array([scores.argmax()])
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    found = np.argpartition(-scores, count - 1)[:count]
    return found[np.lexsort((found, -scores[found]))]
