"""How far a port may be from its checkpoint, by how its weights are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Gates:
    """Limits of a comparison.

    Attributes:
        peak: largest difference of one number, in units of the stage's root mean square; None for no limit.
        relative: norm of all differences of a stage over the norm of the stage.
        token_errors: share of tokens that may differ.
    """

    peak: float | None
    relative: float
    token_errors: float

    @classmethod
    def for_weights(cls, weights: str, arithmetic: str = "fp32") -> Self:
        """Gates for how a bundle stores its weights.

        With "fp32" only the order of additions differs, which leaves 1e-7 to 1e-5. An "fp16" or "bf16" bundle
        is compared with weights rounded the same way, and may also keep the past of a stream in fp16, whose
        steps are 1/2048. Anything else is quantised: measured on six layers, int8 stays near 0.01 and int4
        near 0.07, with room left here for more layers, while a wrong operation gives 0.5 and more.

        With fp16 ``arithmetic`` every operation rounds to 11 bits. Measured on six layers, that leaves a peak
        of 0.05 and 0.003 in all.
        """
        if weights == "fp32":
            return cls(peak=1e-4, relative=3e-5, token_errors=0.0)
        if weights == "fp16" and arithmetic == "fp16":
            return cls(peak=0.3, relative=2e-2, token_errors=0.02)
        if weights in ("fp16", "bf16"):
            return cls(peak=3e-2, relative=2e-3, token_errors=0.02)
        one_byte = weights == "int8" or weights.startswith("palette8")
        return cls(peak=None, relative=0.1 if one_byte else 0.3, token_errors=0.1)

    def for_unquantised(self) -> Self:
        """Gates for those graphs of a bundle whose weights are fp16 at least, whatever the encoder's are."""
        return self.for_weights("fp16", "fp16") if self.peak is None else self

    def with_tolerance(self, tolerance: float | None) -> Self:
        """The same with another limit for numbers, relative and peak alike."""
        if tolerance is None:
            return self
        return replace(self, relative=tolerance, peak=None if self.peak is None else tolerance)
