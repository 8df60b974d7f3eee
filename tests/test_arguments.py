"""Wrong arguments in Python are named in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

import nemostream


def test_what_is_no_model() -> None:
    for wrong in (None, 5, b"tiny"):
        with pytest.raises(TypeError, match="name or the path of a model"):
            nemostream.load(wrong)  # type: ignore[arg-type]


def test_what_is_no_audio() -> None:
    model = nemostream.load()
    for wrong in (b"RIFF", None, [0.0, 0.1]):
        with pytest.raises(TypeError, match="path, an open binary file or a numpy array"):
            model.transcribe(wrong)  # type: ignore[arg-type]


def test_what_is_no_option() -> None:
    model = nemostream.load()
    with pytest.raises(TypeError, match="no argument 'foo'"):
        model.stream(foo=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no argument 'foo'"):
        model.transcribe(np.zeros(100, np.float32), foo=1)  # type: ignore[call-arg]
    with pytest.raises(nemostream.NemostreamError, match="64"):
        model.stream(beam=65)
