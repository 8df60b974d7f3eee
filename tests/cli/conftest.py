"""A small random model in a folder, recordings, and the command line run in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from nemostream.checkpoints.huggingface import save_huggingface
from nemostream.cli.main import main
from tests.models import small_checkpoint, small_config

RATE = 16000


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("nemostream: error: ")]


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_main(*arguments: str | Path) -> Result:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run_main


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random prompt model (en-US, de-DE, auto) as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("models") / "small"
    save_huggingface(small_checkpoint(small_config()), folder)
    return folder


@pytest.fixture
def transcribe(run: Run, model_folder: Path) -> Run:
    """``nemostream transcribe`` with the small model."""
    return lambda *arguments: run("transcribe", "--model", model_folder, *arguments)


def noise(seconds: float, seed: int = 0, channels: int = 1) -> np.ndarray:
    """Sound [N, channels] that changes all the time, so that a random model has something to say."""
    generator = np.random.default_rng(seed)
    loudness = np.repeat(generator.random((int(seconds * 10) + 1, channels)), RATE // 10, axis=0)
    samples = (
        generator.standard_normal((int(seconds * RATE), channels)) * loudness[: int(seconds * RATE)] * 0.2
    )
    return samples.clip(-1, 1).astype(np.float32)


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    """A FLAC file of 2 s."""
    path = tmp_path / "sound.flac"
    soundfile.write(path, noise(2.0), RATE)
    return path


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Put bytes on standard input, which arrive 641 at a time."""

    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return super().read1(min(size or 641, 641))

    def set_bytes(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=Pipe(data), isatty=lambda: False))

    return set_bytes
