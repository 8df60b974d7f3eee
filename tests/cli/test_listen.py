"""`nemostream listen` with a microphone that plays an array."""

from __future__ import annotations

import _thread
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nemostream
from tests.cli.conftest import Run, noise

DEVICE_RATE = 48000


class FakeDevice:
    """What `nemostream.audio.microphone` uses of the package sounddevice."""

    PortAudioError = type("PortAudioError", (Exception,), {})

    def __init__(self, samples: np.ndarray, interrupt: bool) -> None:
        self._samples, self._interrupt = samples, interrupt
        self.opened: dict[str, Any] = {}
        self.log: list[str] = []

    def query_devices(self, device: object = None, kind: str | None = None) -> Any:
        if kind is None:
            return [
                {"name": "speaker", "max_input_channels": 0},
                {"name": "desk mic", "max_input_channels": 1},
            ]
        if device not in (None, 1, "desk"):
            raise ValueError("no such device")
        return {"name": "desk mic", "default_samplerate": float(DEVICE_RATE)}

    def InputStream(self, **options: Any) -> SimpleNamespace:
        self.opened = options
        return SimpleNamespace(
            start=lambda: threading.Thread(target=self._play).start(),
            stop=lambda: self.log.append("stop"),
            close=lambda: self.log.append("close"),
        )

    def _play(self) -> None:
        block = self.opened["blocksize"]
        for start in range(0, len(self._samples), block):
            memory = self._samples[start : start + block, None].copy()
            self.opened["callback"](memory, len(memory), None, "")
            memory.fill(np.nan)  # PortAudio's memory is its own again
        if self._interrupt:
            _thread.interrupt_main()
        else:
            self.opened["finished_callback"]()


Plug = Callable[..., FakeDevice]


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Plug:
    def make(samples: np.ndarray | None = None, *, interrupt: bool = False) -> FakeDevice:
        device = FakeDevice(sound() if samples is None else samples, interrupt)
        monkeypatch.setitem(sys.modules, "sounddevice", device)  # type: ignore[arg-type]
        return device

    return make


def sound() -> np.ndarray:
    return np.repeat(noise(2.5, 3)[:, 0], 3)


@pytest.mark.parametrize("interrupt", [False, True])
def test_everything_that_was_heard_is_said_and_saved(
    run: Run, plug: Plug, model_folder: Path, tmp_path: Path, interrupt: bool
) -> None:
    device = plug(interrupt=interrupt)
    done = run("listen", "--model", model_folder, "-l", "en-US", "--save", tmp_path / "heard.json")
    assert done.code == 0
    assert device.log == ["stop", "close"]
    saved = json.loads((tmp_path / "heard.json").read_text())
    transcript = nemostream.load(model_folder).transcribe(sound(), "en-US", sample_rate=DEVICE_RATE)
    assert saved["text"] == transcript.text
    assert saved["duration"] == pytest.approx(2.5, abs=0.01)
    lines = [line.partition("] ")[2] for line in done.out.splitlines()]
    assert "".join("".join(lines).split()) == "".join(transcript.text.split())
    assert "listening to desk mic" in done.err


def test_devices_and_choice(run: Run, plug: Plug, model_folder: Path) -> None:
    device = plug(sound()[:4800])
    assert run("listen", "--devices").out == "1: desk mic\n"
    assert run("listen", "--model", model_folder, "--device", "1").code == 0
    assert device.opened["device"] == 1
    assert run("listen", "--model", model_folder, "--device", "desk").code == 0
    assert device.opened["device"] == "desk"
    wrong = run("listen", "--model", model_folder, "--device", "attic")
    assert (wrong.code, "'attic'" in wrong.errors[0]) == (3, True)
    assert run("listen", "--save", "x.doc").code == 2


def test_missing_packages_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    missing = run("listen")
    assert missing.code == 7
    assert "pip install 'nemostream[mic]'" in missing.errors[0]


def test_a_slow_listener_loses_sound_and_is_told(
    run: Run, plug: Plug, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nemostream.audio.microphone._MOST_SECONDS_BEHIND", 0.08)
    plug(interrupt=True)
    done = run("listen", "--model", model_folder)
    assert done.code == 0
    assert "blocks of sound were lost" in done.err
