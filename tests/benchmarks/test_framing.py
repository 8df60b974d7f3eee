"""The cost of uniform framing is measured on the same utterances, with native framing as the first of two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.framing import framing_cost

from nemostream.checkpoints import load_checkpoint
from nemostream.engine.model import Model
from nemostream.evaluate.errors import count_errors
from nemostream.evaluate.normalize import normalizer
from nemostream.runtimes.torch import TorchRuntime
from tests.conftest import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "data" / "golden"
TEXT = "a text that nobody said"


def test_both_framings_of_one_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("jiwer", reason="the extra eval is not installed")
    manifest = tmp_path / "manifest.jsonl"
    entry = {"audio_filepath": str(GOLDEN / "a0.wav"), "text": TEXT, "lang": "de-DE"}
    manifest.write_text(json.dumps(entry) + "\n")
    row = framing_cost(GOLDEN / "multi.nemo", manifest, (56, 3)).rows[-1]
    native = Model(TorchRuntime(load_checkpoint(GOLDEN / "multi.nemo")))
    heard = native.transcribe(GOLDEN / "a0.wav", language="de-DE", att_context_size=(56, 3)).text
    normal = normalizer("simple")
    assert row.a == count_errors(normal(TEXT, "de-DE"), normal(heard, "de-DE"), "word")
    assert row.identical == 0  # a random model hears something else at another phase
