"""What every runtime with limits checks before it runs a call."""

from __future__ import annotations

from nemostream.config import SUBSAMPLING_FACTOR
from nemostream.errors import BackendError
from nemostream.runtimes.protocol import Float32, Int64, Runtime


def check_call(runtime: Runtime, mel: Float32, att_context: Int64) -> int:
    """Return the encoder frames that a call of mel [B, M, F] gives.

    Raises:
        BackendError: if M is not a positive multiple of 8, the call is longer than ``runtime.max_frames``, or
            a row of att_context [B, 2] asks for more left context than there is room for.
    """
    rows = int(mel.shape[1])
    frames, rest = divmod(rows, SUBSAMPLING_FACTOR)
    if rest or not frames:
        raise BackendError(f"A call of {rows} mel rows was made; a multiple of 8 was expected.")
    if runtime.max_frames is not None and frames > runtime.max_frames:
        raise BackendError(
            f"A call of {frames} encoder frames was made; this bundle takes {runtime.max_frames} at most."
        )
    left = int(att_context[:, 0].max())
    if left > runtime.left_context:
        raise BackendError(
            f"A left context of {left} frames was asked for; there is room for {runtime.left_context}."
        )
    return frames
