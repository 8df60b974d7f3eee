"""Where an utterance ends: rules on the run of blanks and on how quiet it is, frame by frame.

The rules are those of Kaldi's and sherpa's endpointing, with quiet besides: a pause counts early if it is
quiet as well, and later if it is not, as in noise. They look at one frame after the other, so that the result
does not depend on how many come in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

from nemostream.config import FRAME_MS
from nemostream.errors import SessionError


@dataclass(frozen=True)
class Endpoint:
    """Rules for the end of an utterance, in seconds. Without a word there is no utterance to end.

    Attributes:
        quiet: without a token, if the sound has been quiet for half of it as well.
        pause: without a token, whatever the sound.
        longest: after so long an utterance is cut between two words.
        vad: silero-vad says what is quiet, instead of the level; for calls with music or loud noise.

    Raises:
        SessionError: if one is not positive, or ``quiet`` is longer than ``pause``.
    """

    quiet: float = 0.8
    pause: float = 1.6
    longest: float = 20.0
    vad: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.quiet <= self.pause or self.longest <= 0:
            raise SessionError(
                f"{self} makes no sense; 0 < quiet <= pause and 0 < longest were expected, in seconds."
            )


class Endpointer:
    """Looks for the ends of one stream's utterances.

    Args:
        rules: see `Endpoint`.
    """

    def __init__(self, rules: Endpoint) -> None:
        self._quiet, self._pause, self._longest = (
            max(1, round(1000 * seconds / FRAME_MS)) for seconds in (rules.quiet, rules.pause, rules.longest)
        )
        self._frame = 0
        self._first: int | None = None  # frame of the utterance's first token
        self._last = 0  # frame of its last one
        self._quiet_run = 0

    @property
    def frame(self) -> int:
        """The next frame to look at."""
        return self._frame

    def step(self, quiet: bool, *, tokens: bool, new_word: bool) -> bool:
        """Look at one frame.

        Args:
            quiet: see `nemostream.audio.quiet`.
            tokens: True if tokens with text were emitted on it.
            new_word: True if the first of them begins a word.

        Returns:
            True if an utterance ended before this frame; its tokens then belong to the next one.
        """
        self._quiet_run = self._quiet_run + 1 if quiet else 0
        ended = self._first is not None and self._ends(tokens and new_word)
        if ended:
            self._first = None
        if tokens:
            self._first = self._frame if self._first is None else self._first
            self._last = self._frame
        self._frame += 1
        return ended

    def _ends(self, new_word: bool) -> bool:
        blanks = self._frame - self._last - 1
        if blanks >= self._pause or (blanks >= self._quiet and 2 * self._quiet_run >= self._quiet):
            return True
        first = self._first if self._first is not None else self._frame
        return new_word and self._frame - first >= self._longest
