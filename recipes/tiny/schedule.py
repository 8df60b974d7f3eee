"""How learning rate, batches, augmentation and losses change with the audio seen."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """How training unfolds over the audio seen; hours are of audio."""

    total_hours: float
    peak_rate: float = 1.2e-3
    warmup_hours: float = 1.0
    aligned_hours: float = 2.0  # phones with times, from the corpus "flite"
    phone_only_hours: float = 8.0
    easy_hours: float = 20.0  # short clips, small batches, little augmentation
    phone_weight: float = 0.3
    batch_seconds: float = 60.0
    augmented: float = 0.9  # share of clips, once training is no longer easy
    in_a_row: float = 0.0  # share of batches whose clips are joined, once training is no longer easy

    def rate(self, hours: float) -> float:
        """Linear warm-up, then cosine to two percent of the peak."""
        warm = min(1.0, (hours + 0.02) / self.warmup_hours)
        progress = min(1.0, hours / self.total_hours)
        return self.peak_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))

    def batch(self, hours: float) -> float:
        """Seconds of audio in a batch: half as many, so twice the updates, until the alignment is found."""
        return self.batch_seconds / 2 if hours < self.easy_hours else self.batch_seconds

    def augmentation(self, hours: float) -> float:
        """Share of clips to augment: few until the alignment is found."""
        return min(0.3, self.augmented) if hours < self.easy_hours else self.augmented

    def joined(self, hours: float) -> float:
        """Share of batches whose clips follow one another: none until the alignment is found."""
        return 0.0 if hours < self.easy_hours else self.in_a_row

    def aligned(self, hours: float) -> float:
        """Share of batches with times of phones: all, then some until the model aligns by itself."""
        if self.aligned_hours == 0:
            return 0.0
        return 1.0 if hours < self.aligned_hours else 0.15 if hours < self.easy_hours else 0.0

    def longest_seconds(self, hours: float) -> float:
        """Short clips first."""
        if hours < self.phone_only_hours * 1.5:
            return 5.5
        return 8.0 if hours < self.easy_hours * 0.75 else 16.0
