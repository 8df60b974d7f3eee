"""Phrases that are likely to be said, as a trie that a decoder walks while it emits tokens.

The trie is one of characters, and a token walks all characters of its piece: so it does not matter into which
pieces the model cuts a phrase, nor whether it writes capitals. From every node, failure links lead to the
longest suffix that some phrase begins with (Aho and Corasick, 1975).

A character along a phrase gains, on average over all phrases, ``score`` for each piece that it takes at
least; leaving a phrase before its end gives back what the unfinished part gained; finishing keeps it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nemostream.errors import SessionError
from nemostream.text.scripts import is_unspaced
from nemostream.text.tokenizer import CONTROL_PIECES, SPACE, Tokenizer

DEFAULT_BOOST = 1.0  # e: a piece wins over one that seems 2.7 times as likely; see docs/decoding.md
MOST_BOOST = 10.0
MOST_PHRASES = 5000
MOST_CHARACTERS = 200
_MOST_STEPS = 512  # kept at once; with many phrases and a large vocabulary one takes up to 400 kB


@dataclass
class _Letters:
    """A node of the trie of pieces: the tokens that end here, and what comes next."""

    tokens: list[int] = field(default_factory=list)
    children: dict[str, _Letters] = field(default_factory=dict)


@dataclass
class _Node:
    """A node of the trie of phrases.

    Attributes:
        children: character -> number of the node.
        fail: node of the longest proper suffix that is in the trie.
        open: characters since the last phrase that ends on the way here, this node's own end aside.
        left: characters to the nearest end of a phrase below this node; 0 if one ends here.
        ends: True if a phrase ends here.
    """

    children: dict[str, int] = field(default_factory=dict)
    fail: int = 0
    open: int = 0
    left: int = MOST_CHARACTERS
    ends: bool = False


@dataclass(frozen=True)
class Step:
    """What every token does at one node. Tokens that are not listed lead to the root and gain ``others``.

    Attributes:
        tokens: [K] ids.
        gains: [K] what each adds to the score of a hypothesis; negative if a phrase is left.
        nodes: [K] where it leads.
        done: [K] share of the phrase that is said then, above 0 and at most 1; 0 where it leads to the root.
        open: [K] `PhraseTree.unfinished` of ``nodes``.
        others: zero, or the negative of what an unfinished phrase has gained.
    """

    tokens: NDArray[np.int64]
    gains: NDArray[np.float64]
    nodes: NDArray[np.int64]
    done: NDArray[np.float64]
    open: NDArray[np.float64]
    others: float

    def next_node(self, token: int) -> int:
        """Where a token leads."""
        found = np.flatnonzero(self.tokens == token)
        return int(self.nodes[found[0]]) if found.size else 0

    def gain(self, token: int) -> float:
        """What a token adds to the score."""
        found = np.flatnonzero(self.tokens == token)
        return float(self.gains[found[0]]) if found.size else self.others


class PhraseTree:
    """Phrases to favour, for one tokenizer.

    Args:
        tokenizer: the model's pieces.
        phrases: as they are written; case does not matter.
        score: gain of a piece, above 0 and at most `MOST_BOOST`.

    Raises:
        SessionError: if a phrase is empty, too long or cannot be spelled with the pieces, if there are too
            many phrases, or the score is out of range.
    """

    def __init__(self, tokenizer: Tokenizer, phrases: Iterable[str], score: float = DEFAULT_BOOST) -> None:
        if not 0 < score <= MOST_BOOST:
            raise SessionError(f"boost_score is {score}; more than 0 and {MOST_BOOST} at most was expected.")
        spelled = list(dict.fromkeys(_spellings(phrases)))
        if len(spelled) > MOST_PHRASES:
            raise SessionError(f"{len(spelled)} phrases were given to boost; {MOST_PHRASES} are the most.")
        self._letters = _letters(tokenizer)
        self._nodes = [_Node()]
        pieces = 0
        for phrase in spelled:
            pieces += _fewest_pieces(phrase, self._letters)
            self._insert(phrase)
        self._per_character = score * pieces / sum(map(len, spelled))
        self._link()
        self._steps: dict[int, Step] = {}
        self.step(0)

    def step(self, node: int) -> Step:
        """What every token does at a node."""
        if node not in self._steps:
            if len(self._steps) >= _MOST_STEPS:
                self._steps.clear()
            self._steps[node] = self._make_step(node)
        return self._steps[node]

    def unfinished(self, node: int) -> float:
        """What a phrase that is not finished has gained by now; a hypothesis that ends gives it back."""
        at = self._nodes[node]
        return 0.0 if at.ends else at.open * self._per_character

    def _insert(self, phrase: str) -> None:
        place = 0
        for said, character in enumerate(phrase, 1):
            children = self._nodes[place].children
            if character not in children:
                children[character] = len(self._nodes)
                self._nodes.append(_Node())
            place = children[character]
            self._nodes[place].left = min(self._nodes[place].left, len(phrase) - said)
        self._nodes[place].ends = True

    def _link(self) -> None:
        """Fill in ``fail`` and ``open``, level by level."""
        level = list(self._nodes[0].children.values())
        for place in level:
            self._nodes[place].open = 1
        while level:
            following = []
            for place in level:
                node = self._nodes[place]
                for character, child in node.children.items():
                    self._nodes[child].fail = self._walk(node.fail, character)
                    self._nodes[child].open = 1 if node.ends else node.open + 1
                    following.append(child)
            level = following

    def _walk(self, place: int, character: str) -> int:
        while place and character not in self._nodes[place].children:
            place = self._nodes[place].fail
        return self._nodes[place].children.get(character, 0)

    def _make_step(self, start: int) -> Step:
        """Walk all pieces from a node at once, along the trie that they share."""
        lost = -self.unfinished(start)
        tokens, gains, nodes = [], [], []
        stack = [(self._letters, start, 0.0)]
        while stack:
            letters, place, gain = stack.pop()
            if place or gain != lost:
                for token in letters.tokens:
                    tokens.append(token)
                    gains.append(gain)
                    nodes.append(place)
            for character, child in letters.children.items():
                after = self._walk(place, character)
                step = self._nodes[after].open * self._per_character - self.unfinished(place)
                stack.append((child, after, gain + step))
        return Step(
            tokens=np.array(tokens, np.int64),
            gains=np.array(gains),
            nodes=np.array(nodes, np.int64),
            done=np.array([self._done(place) for place in nodes]),
            open=np.array([self.unfinished(place) for place in nodes]),
            others=lost,
        )

    def _done(self, place: int) -> float:
        node = self._nodes[place]
        return node.open / (node.open + node.left) if place else 0.0


def _spellings(phrases: Iterable[str]) -> Iterator[str]:
    """Yield every phrase in lower case with U+2581 for spaces, as pieces have it."""
    for phrase in phrases:
        words = _lower(phrase).split()
        spelled = SPACE.join(words)
        if not words or len(spelled) > MOST_CHARACTERS:
            raise SessionError(
                f"The phrase {phrase[:40]!r} cannot be boosted; 1 to {MOST_CHARACTERS} characters were "
                "expected."
            )
        yield SPACE + spelled
        if is_unspaced(spelled[0]):
            yield spelled


def _lower(text: str) -> str:
    """Lower case, character by character."""
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


@functools.lru_cache(maxsize=4)
def _letters(tokenizer: Tokenizer) -> _Letters:
    """The pieces as a trie, without tags, control pieces and bytes."""
    root = _Letters()
    for token, piece in enumerate(tokenizer.pieces):
        if token in tokenizer.language_tags or piece in CONTROL_PIECES or piece.startswith("<0x"):
            continue
        node = root
        for character in _lower(piece):
            node = node.children.setdefault(character, _Letters())
        node.tokens.append(token)
    return root


def _fewest_pieces(phrase: str, letters: _Letters) -> int:
    """The smallest number of pieces that spell a phrase."""
    fewest: list[int | None] = [0] + [None] * len(phrase)
    for start in range(len(phrase)):
        count = fewest[start]
        if count is None:
            continue
        node: _Letters | None = letters
        for end in range(start, len(phrase)):
            node = node.children.get(phrase[end]) if node else None
            if node is None:
                break
            known = fewest[end + 1]
            if node.tokens and (known is None or known > count + 1):
                fewest[end + 1] = count + 1
    result = fewest[-1]
    if result is None:
        written = phrase.replace(SPACE, " ").strip()
        raise SessionError(f"The phrase {written!r} cannot be boosted: this model has no pieces to spell it.")
    return result
