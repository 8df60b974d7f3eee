"""Streaming speech recognition with NVIDIA's Nemotron models.

import nemostream

model = nemostream.load()
print(model.transcribe("speech.wav").text)

with model.stream(latency=320, sample_rate=8000, encoding="mulaw") as session:
    for packet in packets:
        for event in session.feed(packet):
            print(event.text, end="")
    session.finish()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemostream.config import ModelConfig
    from nemostream.decoding.endpoint import Endpoint
    from nemostream.engine.model import Model
    from nemostream.engine.session import Session
    from nemostream.errors import NemostreamError
    from nemostream.loading import load
    from nemostream.results import Alternative, Event, Token, Transcript, Utterance, Word

__version__ = "0.1.0"

_HOMES = {  # imported on first use, so that `import nemostream` costs nothing
    "Alternative": "results",
    "Endpoint": "decoding.endpoint",
    "Event": "results",
    "Model": "engine.model",
    "ModelConfig": "config",
    "NemostreamError": "errors",
    "Session": "engine.session",
    "Token": "results",
    "Transcript": "results",
    "Utterance": "results",
    "Word": "results",
    "load": "loading",
}

__all__ = [
    "Alternative",
    "Endpoint",
    "Event",
    "Model",
    "ModelConfig",
    "NemostreamError",
    "Session",
    "Token",
    "Transcript",
    "Utterance",
    "Word",
    "load",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'nemostream' has no attribute {name!r}")
    return getattr(importlib.import_module(f"nemostream.{_HOMES[name]}"), name)
