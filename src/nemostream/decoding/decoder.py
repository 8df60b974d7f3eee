"""The seam of decoders, and which one a stream gets for what was asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Protocol, TypedDict

from nemostream.decoding.beam import MOST_HYPOTHESES, BeamDecoder
from nemostream.decoding.boosting import DEFAULT_BOOST, PhraseTree
from nemostream.decoding.greedy import Hypothesis
from nemostream.decoding.scored import ScoredGreedyDecoder
from nemostream.errors import SessionError
from nemostream.runtimes.protocol import Float32, Int64, Runtime


class Decoder(Protocol):
    """Turns encoder frames into tokens; its state for a stream is a `Hypothesis` that it began."""

    def begin(self) -> Hypothesis:
        """State of a stream that has heard nothing."""

    def decode(
        self, slots: list[int], hypotheses: list[Hypothesis], encoded: Float32, lengths: Int64
    ) -> list[list[tuple[int, int]]]:
        """Decode new frames, as `GreedyDecoder.decode` does; tokens that were returned stay as they are."""

    def finish(self, hypothesis: Hypothesis) -> list[tuple[int, int]]:
        """The stream is at its end: return the tokens that were held back."""


class DecodingOptions(TypedDict, total=False):
    """How a stream is decoded, beyond greedily.

    Keys:
        boost: phrases that are likely to be said, as they are written.
        boost_score: how much a piece of a phrase gains over its rivals, in natural logarithms.
        beam: hypotheses; 1 is greedy. More give alternatives, take longer, and hold text back until they
            agree.
        confidence: keep the probability of every token, for `Word.confidence`; takes longer.
    """

    boost: Sequence[str]
    boost_score: float
    beam: int
    confidence: bool


def decoder_for(
    runtime: Runtime,
    *,
    boost: Sequence[str] = (),
    boost_score: float = DEFAULT_BOOST,
    beam: int = 1,
    confidence: bool = False,
) -> Decoder | None:
    """Return the decoder for `DecodingOptions`; None means the engine's own greedy one.

    Raises:
        SessionError: if an option makes no sense.
        BackendError: if the runtime cannot search with a beam.
    """
    if not isinstance(beam, Integral) or not 1 <= beam <= MOST_HYPOTHESES:
        raise SessionError(f"beam is {beam!r}; 1, which is greedy, to {MOST_HYPOTHESES} was expected.")
    if isinstance(boost, str):
        raise SessionError("boost is one text; a list of phrases was expected.")
    boost = tuple(boost)
    if not all(isinstance(phrase, str) for phrase in boost):
        raise SessionError("boost holds something that is no text; a list of phrases was expected.")
    tree = PhraseTree(runtime.tokenizer, boost, boost_score) if boost else None
    if beam > 1:
        return BeamDecoder(runtime, beam, tree)
    if tree is not None or confidence:
        return ScoredGreedyDecoder(runtime, tree)
    return None
