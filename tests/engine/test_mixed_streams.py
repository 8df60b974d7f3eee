"""Streams with options of their own beside others in one engine: each hears what it hears alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemostream.decoding import decoder_for
from nemostream.engine.model import Model
from nemostream.engine.stream import Stream
from nemostream.runtimes.torch import TorchRuntime
from tests.cli.conftest import noise
from tests.models import small_checkpoint, small_config

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"boost": ["w1 w2", "w7"], "boost_score": 5.0},
    {"beam": 3},
    {},
    {"confidence": True},
    {"beam": 2, "boost": ["w3"]},
)


def test_each_stream_hears_what_it_hears_alone() -> None:
    model = Model(TorchRuntime(small_checkpoint(small_config())))
    sounds = [noise(1.0 + 0.3 * seed, seed)[:, 0] for seed in range(len(OPTIONS))]
    alone = [run(model, [sound], [options])[0] for sound, options in zip(sounds, OPTIONS, strict=True)]
    together = run(model, sounds, OPTIONS)
    assert together == alone
    assert run(model, sounds[::-1], OPTIONS[::-1]) == alone[::-1]
    assert sum(map(len, alone)) > 20
    greedy = [run(model, [sound], [{}])[0] for sound in sounds]
    assert [mine == plain for mine, plain in zip(alone, greedy, strict=True)][::3] == [True, True]
    assert alone[1] != greedy[1]  # the options do something


def run(model: Model, sounds: list[np.ndarray], options: Any) -> list[list[tuple[int, int]]]:
    """Feed all in steps of 100 ms and step them together; return the tokens of each."""
    engine = model.engine
    streams: list[Stream] = [
        engine.open(0, (56, 3), decoder_for(engine.runtime, **chosen)) for chosen in options
    ]
    tokens: list[list[tuple[int, int]]] = [[] for _ in streams]
    for start in range(0, max(map(len, sounds)), 1600):
        for stream, sound in zip(streams, sounds, strict=True):
            if start < len(sound):
                stream.feed(sound[start : start + 1600])
            if start < len(sound) <= start + 1600:
                stream.finish()
        while any(stream.framer.ready() for stream in streams):
            for found, new in zip(tokens, engine.step(streams), strict=True):
                found += new
    for stream, found in zip(streams, tokens, strict=True):
        if stream.decoder is not None:
            found += stream.decoder.finish(stream.hypothesis)
        engine.close(stream)
    return tokens
