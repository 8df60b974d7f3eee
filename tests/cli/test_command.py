"""The command as a whole: help, usage errors, speed of the start, interruption, broken pipes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import nemostream
from nemostream.errors import AudioError, BackendError, CheckpointError, ContextError, LanguageError

from .conftest import Run

COMMAND = [sys.executable, "-m", "nemostream"]


def test_starting_is_fast_and_imports_nothing_heavy() -> None:
    heavy = "torch", "numpy", "onnxruntime", "rich", "soundfile"
    code = f"import sys, nemostream.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1.0  # 0.14 s on an idle machine; this one may be busy


def test_help_names_every_command_and_exit_code(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    for word in ("transcribe", "models", "inspect", "doctor", "convert", "exit codes"):
        assert word in result.out
    classes = AudioError, CheckpointError, ContextError, LanguageError, BackendError
    assert all(f"{kind.exit_code} " in result.out for kind in classes)


def test_version(run: Run) -> None:
    assert run("--version").out == f"nemostream {nemostream.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
        (["transcribe"], "required: FILE"),
        (["transcribe", "a.wav", "-f", "xml"], "invalid choice: 'xml'"),
        (["transcribe", "a.wav", "--latency", "300"], "'300' is not one of 80, 160, 320, 560, 1120 ms"),
        (["transcribe", "a.wav", "--latency", "80", "--att-context", "56", "3"], "not allowed with"),
        (["transcribe", "a.wav", "--channels", "left"], "'left' is not mix, split, or a number"),
        (["transcribe", "a.wav", "--threads", "0"], "'0' is not a whole number above 0"),
        (["transcribe", "a.wav", "-f", "all"], "-o has to say where"),
        (["transcribe", "a.wav", "b.wav", "-f", "srt"], "say where with -o"),
        (["transcribe", "a.wav", "--rate", "8000"], "--rate is for raw PCM"),
        (["transcribe", "-"], "--rate has to say"),
        (["transcribe", "-", "a.wav", "--rate", "8000"], "cannot be combined"),
        (["transcribe", "a.wav", "-q", "-v"], "not allowed with"),
        (["convert", "x"], "required: --to, -o/--output"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(run: Run, arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith("nemostream: error: ")
    assert sentence in result.err
    assert "--help" in result.err


def test_interruption_is_code_130_without_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nemostream.loading.load", interrupted)
    result = run("transcribe", "a.wav")
    assert (result.code, result.out, result.err) == (130, "", "")


def test_interrupting_a_live_stream(model_folder: Path) -> None:
    command = [*COMMAND, "transcribe", "--model", str(model_folder), "-", "--rate", "16000", "--verbose"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # whoever runs the tests in the background has them ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    for _ in range(20):  # more than a pipe holds, so that it is certainly reading
        process.stdin.write(bytes(32_000))
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (130, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_standard_output(model_folder: Path, audio: Path) -> None:
    command = [*COMMAND, "transcribe", "--model", str(model_folder), str(audio)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert done.returncode == 1
    assert "Standard output cannot be written (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fault_of_the_program_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("nemostream.loading.load", broken)
    result = run("transcribe", "a.wav")
    assert result.code == 1
    assert result.err.startswith(
        "nemostream: error: unexpected ZeroDivisionError: division by zero; run it with"
    )


def test_warnings_are_said_once_in_a_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def warning(*_: object, **__: object) -> None:
        for _ in range(3):
            warnings.warn("Mind the gap.", stacklevel=1)
        warnings.warn("not for users", FutureWarning, stacklevel=1)
        raise CheckpointError("Enough.")

    monkeypatch.setattr("nemostream.loading.load", warning)
    assert (
        run("transcribe", "a.wav").err == "nemostream: warning: Mind the gap.\nnemostream: error: Enough.\n"
    )
    assert run("transcribe", "a.wav", "--quiet").err == "nemostream: error: Enough.\n"


def test_a_reader_that_has_enough_is_no_error(model_folder: Path, audio: Path) -> None:
    command = [*COMMAND, "transcribe", "--model", str(model_folder), str(audio), str(audio), "-f", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, error = process.communicate(timeout=120)
    assert error == b""
    assert process.returncode == 141
