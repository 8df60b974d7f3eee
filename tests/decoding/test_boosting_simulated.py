"""Phrases on simulated speech: they are found more often, and the rest is heard as well as before.

The simulated model says one word every third frame; what it hears of a word is its own score plus noise, so
that it errs at a known rate. Words of the phrases are harder to hear, as names are.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jiwer
import numpy as np
import pytest

from nemostream.decoding import decoder_for
from nemostream.text.tokenizer import Tokenizer

WORDS = tuple(f"{a}{b}{c}" for a in "bdkmt" for b in "aeio" for c in "lnrs")  # 80 words, one piece each
PHRASES = ("bal", "dan kir", "tos mel")
HEARING = 4.0  # score of a word that is said, in standard deviations of the noise
RARE = {WORDS.index(word) for phrase in PHRASES for word in phrase.split()}


class SimulatedRuntime:
    """Encoder frames are scores, and the number of words before them is even (0) or odd (1).

    The predictor counts words likewise; where the two disagree, the frame's word has been said.
    """

    name = "simulated"
    framing, max_frames, left_context, slots = "native", None, 56, 1

    def __init__(self) -> None:
        self.tokenizer = Tokenizer(tuple("\u2581" + word for word in WORDS))
        self._odd = np.zeros((1, 1, 1), np.float32)
        self.config: Any = SimpleNamespace(
            blank_id=len(WORDS),
            vocab_size=len(WORDS),
            max_symbols=10,
            predictor_layers=1,
            predictor_hidden_size=1,
        )

    def predict_from(self, state: Any, tokens: np.ndarray) -> Any:
        odd = np.where(tokens == len(WORDS), 0.0, 1 - state[0][0, :, 0]).astype(np.float32)
        return odd[:, None], (odd[None, :, None], odd[None, :, None])

    def predict(self, slots: list[int], tokens: np.ndarray) -> np.ndarray:
        predicted, (self._odd, _) = self.predict_from((self._odd, self._odd), tokens)
        return np.asarray(predicted)

    def joint_logits(self, encoded: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        scores = encoded[..., :-1].copy()
        scores[..., -1] += 200.0 * (encoded[..., -1] != predicted)
        return scores

    def joint(self, encoded: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        return self.joint_logits(encoded, predicted).argmax(axis=2)

    def resize(self, slots: int) -> None: ...

    def reset(self, slot: int) -> None: ...

    def encode(self, *arguments: Any) -> Any: ...


def said(generator: np.random.Generator, phrases: bool) -> list[str]:
    words = list(generator.choice([w for i, w in enumerate(WORDS) if i not in RARE], 6))
    if phrases:
        words.insert(int(generator.integers(0, 6)), str(generator.choice(PHRASES)))
    return " ".join(words).split()


def heard(generator: np.random.Generator, words: list[str]) -> np.ndarray:
    """A frame of silence before and after every word; the blank is far below the words where there is one."""
    frames = []
    for count, word in enumerate(words):
        scores, silence = (generator.normal(0.0, 1.0, len(WORDS) + 2) for _ in range(2))
        scores[WORDS.index(word)] += 2.6 if WORDS.index(word) in RARE else HEARING
        scores *= HEARING  # so that they are the logarithms of what is likely, given the noise
        scores[-2], silence[-2] = -20.0, 60.0
        scores[-1] = silence[-1] = count % 2
        frames += [silence, scores, silence]
    return np.array(frames, np.float32)


def transcribe(runtime: SimulatedRuntime, encoded: np.ndarray, **options: Any) -> str:
    decoder = decoder_for(runtime, confidence=True, **options)  # type: ignore[arg-type]
    assert decoder is not None
    hypothesis = decoder.begin()
    tokens = decoder.decode([0], [hypothesis], encoded[None], np.array([len(encoded)]))[0]
    tokens += decoder.finish(hypothesis)
    return " ".join(WORDS[token] for token, _ in tokens)


@pytest.mark.parametrize("beam", [1, 4])
def test_phrases_are_found_and_nothing_else_suffers(beam: int) -> None:
    runtime = SimulatedRuntime()
    found = {}
    for phrases in (True, False):
        generator = np.random.default_rng(7)
        texts = [said(generator, phrases) for _ in range(150)]
        frames = [heard(generator, words) for words in texts]
        for boost in ((), PHRASES):
            options = {"beam": beam, "boost": boost, "boost_score": 2.0}
            texts_heard = [transcribe(runtime, item, **options) for item in frames]
            reference = [" ".join(words) for words in texts]
            recall = np.mean(
                [
                    phrase in text
                    for text, line in zip(texts_heard, reference, strict=True)
                    for phrase in PHRASES
                    if phrase in line
                ]
                or [0.0]
            )
            found[phrases, bool(boost)] = (float(recall), float(jiwer.wer(reference, texts_heard)))
    assert 0.3 < found[True, False][0] < 0.8  # the simulation is neither hopeless nor perfect
    assert found[True, True][0] > found[True, False][0] + 0.15
    assert found[True, True][1] < found[True, False][1]
    assert 0.01 < found[False, False][1] < 0.2
    assert found[False, True][1] <= found[False, False][1] + 0.01
