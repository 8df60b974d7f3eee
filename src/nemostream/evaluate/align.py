"""Where tokens were said: their most likely alignment to encoder frames (Viterbi over the joint's lattice).

With it the times that decoding gives can be judged: they should be those of the best alignment of the same
tokens, which is chosen with the whole recording known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nemostream.decoding.scored import log_softmax
from nemostream.engine.model import Model
from nemostream.features import log_mel
from nemostream.framing import Framer, NativeFramer, UniformFramer
from nemostream.runtimes.protocol import FixedRuntime, Float32, Runtime


def forced_frames(runtime: Runtime, slot: int, encoded: Float32, tokens: Sequence[int]) -> list[int]:
    """Return the encoder frame of every token on the most likely path through the lattice.

    A path takes the blank of every frame once, after any number of tokens on that frame (Graves, 2012).

    Args:
        runtime: gives predictor and joint.
        slot: whose predictor state may be used up.
        encoded: [N, J] projected encoder frames of the whole recording, N > 0.
        tokens: U token ids.

    Returns:
        U frames, which never fall.
    """
    runtime.reset(slot)
    blank = runtime.config.blank_id
    best: NDArray[np.float64] | None = None  # [N] of arriving at a frame with the tokens so far
    emits = np.zeros(len(encoded))  # [N] of the token that leads to the current row
    chosen: list[NDArray[np.int64]] = []  # for every token: [N] its frame, if the row is at frame n
    for count, token in enumerate([blank, *tokens]):
        predicted = runtime.predict([slot], np.array([token], np.int64))
        log_probs = log_softmax(runtime.joint_logits(encoded[None], predicted)[0])  # [N, V + 1]
        passed = np.concatenate([[0.0], np.cumsum(log_probs[:-1, blank])])
        if best is None:
            best = passed
        else:
            gained = best + emits - passed
            most = np.maximum.accumulate(gained)
            chosen.append(np.maximum.accumulate(np.where(gained == most, np.arange(len(encoded)), 0)))
            best = passed + most
        if count < len(tokens):
            emits = log_probs[:, tokens[count]]
    frame, found = len(encoded) - 1, list[int]()
    for frames in reversed(chosen):
        frame = int(frames[frame])
        found.append(frame)
    return found[::-1]


def encoder_frames(
    model: Model, samples: Float32, *, language: str | None = None, att_context: tuple[int, int] | None = None
) -> Float32:
    """Return the projected encoder frames [N, J] of 16 kHz mono ``samples``, as streaming computes them.

    Raises:
        LanguageError: if the model does not know the language.
        ContextError: if it cannot run with the context.
    """
    runtime, config = model.engine.runtime, model.config
    context = model.att_context(att_context_size=att_context)
    frames = runtime.call_frames if isinstance(runtime, FixedRuntime) else context[1] + 1
    framer: Framer = (NativeFramer if runtime.framing == "native" else UniformFramer)(
        frames, config.num_mel_bins
    )
    framer.push(log_mel(samples, config.num_mel_bins, config.preemphasis))
    framer.finish()
    stream = model.engine.open(config.prompt_id(language), context)
    parts = []
    try:
        for _ in range(framer.ready()):
            call = framer.take(1)
            encoded, lengths = runtime.encode(
                [stream.slot],
                np.ascontiguousarray(call.mel[None]),
                np.array([call.length], np.int64),
                np.array([stream.prompt_id], np.int64),
                np.array([context], np.int64),
            )
            parts.append(encoded[0, : int(lengths[0])].copy())
    finally:
        model.engine.close(stream)
    return np.concatenate(parts)
