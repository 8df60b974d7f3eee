"""A runtime whose graphs take calls of one size gets exactly those, and no other context."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nemostream.engine.model import Model
from nemostream.errors import ContextError
from nemostream.features import log_mel
from nemostream.framing import UniformFramer
from nemostream.runtimes.protocol import Float32, Int64
from nemostream.runtimes.torch import TorchRuntime
from tests.models import small_checkpoint, small_config

CONTEXT = (42, 13)


class FixedTorchRuntime(TorchRuntime):
    """The reference network behind the shapes of a bundle; remembers the calls that it got."""

    def __init__(self, call_frames: int) -> None:
        checkpoint = small_checkpoint(small_config())
        super().__init__(checkpoint, framing="uniform", left_context=CONTEXT[0])
        self.config = dataclasses.replace(self.config, att_context_sizes=(CONTEXT,))
        self.call_frames = self.max_frames = call_frames
        self.att_context = CONTEXT
        self.calls: list[tuple[Float32, Int64]] = []

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        self.calls.append((mel, mel_lengths))
        return super().encode(slots, mel, mel_lengths, prompt_ids, att_context)


@pytest.mark.parametrize("call_frames", [7, 14, 28, 56])  # the tiers of 560 to 4480 ms
def test_every_call_is_one_whole_window(call_frames: int) -> None:
    runtime = FixedTorchRuntime(call_frames)
    samples = np.random.default_rng(0).standard_normal(16000 * 5 + 77, dtype=np.float32) * np.float32(0.1)
    Model(runtime).transcribe(samples)
    framer = UniformFramer(call_frames, runtime.config.num_mel_bins)
    framer.push(log_mel(samples))
    framer.finish()
    expected = [framer.take(1) for _ in range(framer.ready())]
    assert len(runtime.calls) == len(expected)
    for (mel, lengths), call in zip(runtime.calls, expected, strict=True):
        assert lengths.tolist() == [call.length]
        assert np.array_equal(mel[0], call.mel)


def test_another_context_is_refused() -> None:
    model = Model(FixedTorchRuntime(28))
    assert model.att_context() == CONTEXT
    with (
        pytest.warns(UserWarning, match="not trained"),
        pytest.raises(ContextError, match=r"made for \[42, 13\] and calls of 2240 ms"),
    ):
        model.stream(latency=320)
