"""Confidence, phrases, beams: what they may change, and what they may not."""

from __future__ import annotations

import functools
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemostream.decoding import Decoder, GreedyDecoder, Hypothesis, decoder_for
from nemostream.decoding.beam import BeamDecoder, BeamHypothesis
from nemostream.decoding.boosting import PhraseTree
from nemostream.decoding.scored import ScoredGreedyDecoder, log_softmax
from nemostream.errors import BackendError, SessionError
from nemostream.runtimes.onnx import OnnxRuntime
from nemostream.runtimes.torch import TorchRuntime
from nemostream.text.tokenizer import Tokenizer
from tests.bundles import random_bundle
from tests.models import PIECES, small_checkpoint, small_config

Tokens = list[tuple[int, int]]


@functools.cache
def runtime_of(name: str, blank_bias: float = 2.0) -> TorchRuntime | OnnxRuntime:
    if name == "onnx":
        made: TorchRuntime | OnnxRuntime = OnnxRuntime(random_bundle(True), threads=1)
    else:
        checkpoint = small_checkpoint(small_config())
        checkpoint.tensors["joint.head.bias"][-1] = blank_bias
        made = TorchRuntime(checkpoint)
    made.resize(2)
    return made


def frames_of(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, count, 32)).astype(np.float32) * 1.5


def greedy(runtime: TorchRuntime | OnnxRuntime, encoded: np.ndarray) -> Tokens:
    runtime.reset(0)
    lengths = np.array([encoded.shape[1]])
    return GreedyDecoder(runtime).decode([0], [Hypothesis()], encoded, lengths)[0]


def decode(
    decoder: Decoder, runtime: TorchRuntime | OnnxRuntime, encoded: np.ndarray, cuts: tuple[int, ...] = ()
) -> tuple[Tokens, list[float], Hypothesis]:
    runtime.reset(1)
    hypothesis, tokens, log_probs = decoder.begin(), Tokens(), list[float]()
    for start, stop in zip((0, *cuts), (*cuts, encoded.shape[1]), strict=True):
        part = encoded[:, start:stop]
        tokens += decoder.decode([1], [hypothesis], part, np.array([part.shape[1]]))[0]
        log_probs += hypothesis.log_probs
    tokens += decoder.finish(hypothesis)
    return tokens, log_probs + hypothesis.log_probs, hypothesis


@pytest.mark.parametrize("name", ["torch", "onnx"])
@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 40), seed=st.integers(0, 1000))
def test_beam_of_one_and_scored_greedy_are_greedy(name: str, count: int, seed: int) -> None:
    runtime, encoded = runtime_of(name), frames_of(count, seed)
    expected = greedy(runtime, encoded)
    scored, scored_probs, _ = decode(ScoredGreedyDecoder(runtime), runtime, encoded)
    searched, beam_probs, _ = decode(BeamDecoder(runtime, 1), runtime, encoded)
    assert scored == searched == expected
    assert scored_probs == pytest.approx(beam_probs, abs=1e-5)
    assert len(scored_probs) == len(expected)


def test_beam_of_one_obeys_the_cap_of_a_frame() -> None:
    runtime, encoded = runtime_of("torch", -100.0), frames_of(3, 1)
    tokens, _, _ = decode(BeamDecoder(runtime, 1), runtime, encoded)
    assert tokens == greedy(runtime, encoded)
    assert [frame for _, frame in tokens] == [0] * 10 + [1] * 10 + [2] * 10


def test_log_probabilities_are_those_of_the_joint() -> None:
    runtime, encoded = runtime_of("torch"), frames_of(20, 5)
    tokens, log_probs, _ = decode(ScoredGreedyDecoder(runtime), runtime, encoded)
    runtime.reset(0)
    predicted = runtime.predict([0], np.array([runtime.config.blank_id]))
    assert tokens
    for (token, frame), log_prob in zip(tokens, log_probs, strict=True):
        logits = runtime.joint_logits(encoded[:, frame : frame + 1], predicted)[0, 0]
        assert log_prob == pytest.approx(math.log(np.exp(logits)[token] / np.exp(logits).sum()), abs=1e-4)
        predicted = runtime.predict([0], np.array([token]))


def exact_score(runtime: TorchRuntime, encoded: np.ndarray, tokens: tuple[int, ...]) -> float:
    """Log-probability of a token sequence over all alignments, by the forward recursion."""
    runtime.reset(0)
    blank = runtime.config.blank_id
    rows = [runtime.predict([0], np.array([blank]))]
    rows += [runtime.predict([0], np.array([token])) for token in tokens]
    table = np.stack(
        [log_softmax(runtime.joint_logits(encoded, row)[0]) for row in rows]
    )  # [U + 1, T, V + 1]
    alpha = np.full((len(rows), encoded.shape[1] + 1), -np.inf)
    alpha[0, 0] = 0.0
    for frame, count in product(range(encoded.shape[1]), range(len(rows))):
        if count:
            here = alpha[count - 1, frame] + table[count - 1, frame, tokens[count - 1]]
            alpha[count, frame] = np.logaddexp(alpha[count, frame], here)
        alpha[count, frame + 1] = alpha[count, frame] + table[count, frame, blank]
    return float(alpha[-1, -1])


def test_a_wide_beam_finds_what_is_most_likely() -> None:
    """Against all sequences of up to two tokens, scored exactly."""
    runtime = runtime_of("torch", 6.0)
    assert isinstance(runtime, TorchRuntime)
    vocabulary = range(runtime.config.vocab_size)
    better = 0
    for seed in range(6):
        encoded = frames_of(2, seed) * 0.7
        sequences = [(), *((a,) for a in vocabulary), *product(vocabulary, vocabulary)][: 1 + 64 + 64 * 12]
        best = max(sequences, key=lambda tokens: exact_score(runtime, encoded, tokens))
        _, _, state = decode(BeamDecoder(runtime, 24), runtime, encoded)
        assert isinstance(state, BeamHypothesis)
        found, score = state.alternatives[0]
        assert score >= exact_score(runtime, encoded, best) - 0.05  # a beam may lose a little probability
        assert score <= exact_score(runtime, encoded, found) + 1e-4
        tokens = tuple(token for token, _ in greedy(runtime, encoded))
        better += exact_score(runtime, encoded, found) > exact_score(runtime, encoded, tokens) + 1e-3
    assert better > 0  # the beam is of use


@pytest.mark.parametrize("beam", [1, 4])
def test_tokens_do_not_depend_on_chunks_and_frames_are_monotone(beam: int) -> None:
    runtime, encoded = runtime_of("torch"), frames_of(40, 11)
    tree = PhraseTree(runtime.tokenizer, ["w3 w5", "w1s2"])
    for decoder in (BeamDecoder(runtime, beam, tree), ScoredGreedyDecoder(runtime, tree)):
        whole, log_probs, _ = decode(decoder, runtime, encoded)
        cut, cut_log_probs, _ = decode(decoder, runtime, encoded, (1, 2, 7, 7, 20))
        assert cut == whole
        assert cut_log_probs == pytest.approx(log_probs, abs=1e-5)
        frames = [frame for _, frame in whole]
        assert frames == sorted(frames)


def test_alternatives_are_ordered_and_different() -> None:
    runtime = runtime_of("torch")
    tokens, _, state = decode(BeamDecoder(runtime, 5), runtime, frames_of(12, 3))
    assert isinstance(state, BeamHypothesis)
    scores = [score for _, score in state.alternatives]
    assert scores == sorted(scores, reverse=True)
    assert len({tokens for tokens, _ in state.alternatives}) == 5
    ending = state.alternatives[0][0]
    assert tuple(token for token, _ in tokens)[len(tokens) - len(ending) :] == ending


# --- phrases -------------------------------------------------------------------------------------

LETTERS = (
    "<unk>",
    "<en-US>",
    "▁n",
    "▁new",
    "▁ne",
    "w",
    "▁york",
    "▁y",
    "ork",
    "▁city",
    "▁cat",
    "e",
    "▁New",
    "京",
    "▁",
)


def gain_of(tree: PhraseTree, pieces: list[str]) -> tuple[float, float]:
    """What pieces gain along the tree, and what of it would be given back at the end."""
    node, total = 0, 0.0
    for piece in pieces:
        step = tree.step(node)
        total += step.gain(LETTERS.index(piece))
        node = step.next_node(LETTERS.index(piece))
    return total, tree.unfinished(node)


def test_a_phrase_gains_the_same_however_it_is_cut() -> None:
    tree = PhraseTree(Tokenizer(LETTERS), ["New York"], 3.0)
    whole, left = gain_of(tree, ["▁new", "▁york"])
    assert (whole, left) == (pytest.approx(6.0), 0.0)  # two pieces at least, 3 each
    for pieces in (["▁n", "e", "w", "▁y", "ork"], ["▁New", "▁york"], ["▁cat", "▁new", "▁y", "ork"]):
        assert gain_of(tree, pieces) == (pytest.approx(whole), 0.0)


def test_what_is_not_finished_is_given_back() -> None:
    tree = PhraseTree(Tokenizer(LETTERS), ["new york", "new york city", "york cat"], 2.0)
    begun, left = gain_of(tree, ["▁new"])
    assert begun > 0
    assert left == pytest.approx(begun)
    assert gain_of(tree, ["▁new", "▁cat"]) == (pytest.approx(0.0), 0.0)
    finished, _ = gain_of(tree, ["▁new", "▁york"])
    assert gain_of(tree, ["▁new", "▁york", "e"]) == (pytest.approx(finished), 0.0)
    longer, _ = gain_of(tree, ["▁new", "▁york", "▁city"])
    assert longer > finished
    crossed, left = gain_of(tree, ["▁new", "▁york", "▁cat"])  # "york cat" is begun inside "new york"
    assert crossed > finished
    assert left == 0.0


def test_scripts_without_spaces_need_no_leading_one() -> None:
    tree = PhraseTree(Tokenizer(LETTERS), ["京"], 1.0)
    assert gain_of(tree, ["京"])[0] > 0
    assert gain_of(tree, ["e", "京"])[0] > 0
    assert gain_of(tree, ["▁", "京"])[0] > 0


@pytest.mark.parametrize("beam", [1, 3])
def test_a_boosted_phrase_is_said_instead_of_its_rival(beam: int) -> None:
    """For every token that greedy decoding chose, boosting the second best piece there brings that in."""
    runtime = runtime_of("torch")
    changed = tried = 0
    for seed in range(12):
        encoded = frames_of(6, seed)
        tokens = greedy(runtime, encoded)
        if not tokens:
            continue
        runtime.reset(0)
        predicted = runtime.predict([0], np.array([runtime.config.blank_id]))
        logits = runtime.joint_logits(encoded[:, tokens[0][1] :][:, :1], predicted)[0, 0]
        words = [index for index, piece in enumerate(PIECES) if piece.startswith("▁")]
        rival = max((w for w in words if w != tokens[0][0]), key=lambda w: logits[w])
        tried += 1
        decoder = decoder_for(runtime, boost=[PIECES[rival][1:]], boost_score=10.0, beam=beam)
        assert decoder is not None
        boosted, _, _ = decode(decoder, runtime, encoded)
        changed += rival in {token for token, _ in boosted}
    assert tried > 8
    assert changed >= 0.75 * tried


@pytest.mark.parametrize("beam", [1, 4])
def test_phrases_are_not_heard_in_silence(beam: int) -> None:
    """Where the model is sure of the blank, the highest boost brings nothing, so it can't loop."""
    runtime = runtime_of("torch", 40.0)
    decoder = decoder_for(runtime, boost=["w1", "w2 w3", "w4s5"], boost_score=10.0, beam=beam)
    assert decoder is not None
    tokens, _, _ = decode(decoder, runtime, frames_of(400, 2))
    assert tokens == []


def test_boosting_is_capped_per_frame() -> None:
    runtime = runtime_of("torch", -100.0)  # a model that never says blank
    for beam in (1, 3):
        decoder = decoder_for(runtime, boost=["w1"], boost_score=10.0, beam=beam)
        assert decoder is not None
        tokens, _, _ = decode(decoder, runtime, frames_of(5, 2))
        assert len(tokens) == 5 * runtime.config.max_symbols


def test_options() -> None:
    runtime = runtime_of("torch")
    assert decoder_for(runtime) is None  # the engine's own greedy decoder stays as fast as it is
    assert isinstance(decoder_for(runtime, confidence=True), ScoredGreedyDecoder)
    assert isinstance(decoder_for(runtime, beam=2), BeamDecoder)
    for bad, message in (
        ({"beam": 0}, "beam is 0"),
        ({"boost": "w1"}, "a list"),
        ({"boost": ["  "]}, "characters were expected"),
        ({"boost": ["qqq"]}, "no pieces to spell"),
        ({"boost": ["w1"], "boost_score": 0.0}, "boost_score"),
        ({"boost": ["w1"], "boost_score": 11.0}, "boost_score"),
    ):
        with pytest.raises(SessionError, match=message):
            decoder_for(runtime, **bad)  # type: ignore[arg-type]


def test_a_runtime_that_cannot_fork_says_so() -> None:
    class Plain:
        name = "plain"

    with pytest.raises(BackendError, match="plain cannot search with a beam"):
        BeamDecoder(Plain(), 4)  # type: ignore[arg-type]
