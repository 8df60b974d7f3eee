"""Differences of one stage, gathered over many calls."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemostream.verify.gates import Gates


@dataclass(frozen=True)
class StageResult:
    """What came of one stage.

    Attributes:
        stage: its name.
        passed: True if it is within the gates.
        peak: largest difference of one number, in units of the stage's root mean square; None if the stage
            is not a matter of numbers.
        relative: norm of the differences over the norm of the stage; None as above.
        compared: numbers (or tokens, or texts) that were compared.
        where: place of the first difference that is outside the gates, or of the largest one.
        detail: more in words, if there is more to say.
        max_abs: largest difference of one number as it is; None as above.
        cosine: of the angle between the two stages as vectors; None as above.
    """

    stage: str
    passed: bool
    peak: float | None = None
    relative: float | None = None
    compared: int = 0
    where: str | None = None
    detail: str | None = None
    max_abs: float | None = None
    cosine: float | None = None


@dataclass
class Meter:
    """Gathers the differences of one stage call by call, at constant memory."""

    stage: str
    gates: Gates
    _compared: int = 0
    _squares: float = 0.0  # of the reference
    _port_squares: float = 0.0
    _products: float = 0.0  # of the two
    _differences: float = 0.0  # squares of them
    _largest: float = 0.0
    _largest_at: str | None = None
    _failed_at: str | None = None
    _shapes: str | None = None
    _calls: int = field(default=0)

    def add(self, port: NDArray[Any], reference: NDArray[Any], where: str) -> None:
        """Compare two arrays [frames, ...] of one call."""
        if port.shape != reference.shape:
            self._failed_at = self._failed_at or where
            self._shapes = f"shape {list(port.shape)}, expected {list(reference.shape)}"
            return
        if not reference.size:
            return
        expected = reference.astype(np.float64)
        difference = np.abs(port.astype(np.float64) - expected)
        difference[~np.isfinite(difference)] = math.inf
        self._calls += 1
        self._compared += reference.size
        found = port.astype(np.float64)
        self._squares += float(np.square(expected).sum())
        self._port_squares += float(np.square(found).sum())
        self._products += float((found * expected).sum())
        self._differences += float(np.square(difference).sum())
        peak = float(difference.max())
        if peak > self._largest or self._largest_at is None:
            self._largest, self._largest_at = peak, where
        if self._failed_at is None and not self._passes(
            float(difference.max()) / _root(float(np.square(expected).mean())),
            _ratio(float(np.square(difference).sum()), float(np.square(expected).sum())),
        ):
            frame = int(np.argmax(difference.reshape(len(difference), -1).max(axis=1)))
            self._failed_at = f"{where}, frame {frame} of it"

    def result(self) -> StageResult | None:
        """What came of it; None if nothing was compared."""
        if not self._calls and self._failed_at is None:
            return None
        rms = _root(self._squares / max(self._compared, 1))
        peak, relative = self._largest / rms, _ratio(self._differences, self._squares)
        if not math.isfinite(peak):
            return StageResult(
                self.stage, False, None, None, self._compared, self._failed_at, "numbers that are not finite"
            )
        return StageResult(
            stage=self.stage,
            passed=self._failed_at is None and self._passes(peak, relative),
            peak=peak,
            relative=relative,
            compared=self._compared,
            where=self._failed_at or self._largest_at,
            detail=self._shapes,
            max_abs=self._largest,
            cosine=self._cosine(),
        )

    def _cosine(self) -> float:
        norms = math.sqrt(self._squares) * math.sqrt(self._port_squares)
        return self._products / norms if norms else float(self._squares == self._port_squares)

    def _passes(self, peak: float, relative: float) -> bool:
        return relative <= self.gates.relative and (self.gates.peak is None or peak <= self.gates.peak)


def _root(mean_square: float) -> float:
    return max(math.sqrt(mean_square), 1e-9)  # a stage of zeros is compared in absolute terms


def _ratio(differences: float, squares: float) -> float:
    return math.sqrt(differences) / max(math.sqrt(squares), 1e-9)
