"""Wrong arguments in Python are named in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nemostream
from nemostream.loading import embedded_bundle


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"latency": "320"}, "latency of '320' ms"),
        ({"language": 3}, "Unknown language 3"),
        ({"beam": 1.5}, "beam is 1.5"),
        ({"beam": "4"}, "beam is '4'"),
        ({"boost": [3]}, "no text"),
        ({"endpoint": 0.8}, "endpoint is 0.8"),
        ({"itn": "written:numbers"}, "itn is 'written:numbers'"),
        ({"sample_rate": 0}, "sample rate is 0"),
        ({"sample_rate": "16000"}, "sample rate is '16000'"),
        ({"sample_rate": None}, "sample rate is None"),
    ],
)
def test_options_of_a_wrong_type_are_named_before_anything_is_heard(
    wrong: dict[str, Any], message: str
) -> None:
    model = nemostream.load()
    with pytest.raises((nemostream.NemostreamError, TypeError), match=message):
        model.transcribe(np.zeros(16_000, np.float32), **wrong)


def test_an_iterator_of_phrases_is_not_used_up_by_the_check() -> None:
    model = nemostream.load()
    with pytest.raises(nemostream.NemostreamError, match="日"):
        model.stream(boost=iter(["日"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 100_000, 1.5, "2", True])
@pytest.mark.parametrize("what", ["threads", "workers"])
def test_numbers_of_threads_that_make_no_sense(what: str, count: Any) -> None:
    with pytest.raises(nemostream.NemostreamError, match=f"{what} is {count!r}"):
        nemostream.load(**{what: count})


def test_a_revision_of_what_is_not_on_the_hub() -> None:
    for model in ("tiny", embedded_bundle()):
        with pytest.raises(nemostream.NemostreamError, match="leave the revision out"):
            nemostream.load(model, revision="0" * 40)
