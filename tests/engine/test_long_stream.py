"""A stream that runs for long: flat memory, fixed state, and speech after silence is still heard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nemostream.config import SAMPLE_RATE
from nemostream.engine.model import Model
from nemostream.runtimes.torch import TorchRuntime
from tests.engine.test_session import speech, tokens_of
from tests.models import small_checkpoint, small_config


def resident_kilobytes() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.long
def test_half_an_hour_of_silence_then_speech() -> None:
    checkpoint = small_checkpoint(small_config())
    checkpoint.tensors["joint.head.bias"][-1] += 1.0  # blank on silence, as a trained model has it
    model = Model(TorchRuntime(checkpoint))
    samples = speech(4.0)
    silence = np.zeros(10 * SAMPLE_RATE, np.float32)
    memory = []
    with model.stream(latency=1120, chunks_per_call=8) as session:
        for _ in range(180):
            session.feed(silence)
            memory.append(resident_kilobytes())
        events = session.feed(samples) + session.finish()
    # kB; keeping the mel frames alone would be 77,000, and what the allocator holds varies by some thousand
    assert np.median(memory[-30:]) - np.median(memory[30:60]) < 10_000
    heard = {token for token, _ in tokens_of(events)}
    assert len(heard & {token.id for token in model.transcribe(samples, latency=1120).tokens}) >= 3
