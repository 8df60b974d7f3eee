"""Ctrl-C, and outputs that nobody reads: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nemostream.audio import load_audio
from nemostream.loading import embedded_clip

COMMAND = [sys.executable, "-m", "nemostream"]
closes_a_stream = pytest.mark.skipif(os.name == "nt", reason="shells of Windows cannot close a stream")
LIVE = [*COMMAND, "transcribe", "-", "--rate", "16000"]


def clip_bytes() -> bytes:
    return np.round(load_audio(embedded_clip()) * 32767).astype("<i2").tobytes()


def hear(*options: str, end: bytes = b"") -> subprocess.Popen[bytes]:
    """A process that has heard the clip, on a pipe that stays open."""
    process = subprocess.Popen(
        [*LIVE, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdin is not None
    process.stdin.write(clip_bytes() + end)
    process.stdin.flush()
    return process


@pytest.mark.parametrize("form", ["txt", "srt", "json"])
def test_ctrl_c_on_a_live_stream_loses_nothing_that_was_heard(form: str) -> None:
    whole = subprocess.run([*LIVE, "-f", form], input=clip_bytes(), capture_output=True, check=True)
    process = hear("-f", form)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    assert out == whole.stdout
    assert len(out) > 20


def test_ctrl_c_before_anything_came_is_quiet() -> None:
    process = subprocess.Popen(
        LIVE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(0.4)  # while it imports, most likely
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


def test_half_a_sample_at_the_end_is_reported() -> None:
    result = subprocess.run([*LIVE, "-f", "json"], input=clip_bytes() + b"x", capture_output=True, check=True)
    assert b"the last 1 bytes of standard input are no whole sample" in result.stderr
    assert json.loads(result.stdout)["text"]


@closes_a_stream
def test_a_closed_output_is_a_sentence(tmp_path: Path) -> None:
    line = 'exec "$@" >&-'
    command = [*COMMAND, "transcribe", str(embedded_clip())]
    result = subprocess.run(["sh", "-c", line, "sh", *command], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "Standard output is closed" in result.stderr
    command += ["-o", str(tmp_path)]
    subprocess.run(["sh", "-c", line, "sh", *command], capture_output=True, check=True)
    assert (tmp_path / "clip.txt").read_text().strip()


@closes_a_stream
def test_messages_of_a_closed_standard_error_stay_out_of_the_results(tmp_path: Path) -> None:
    command = [*COMMAND, "transcribe", str(embedded_clip()), str(tmp_path / "none.wav")]
    result = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], capture_output=True, check=False)
    assert result.returncode == 3
    lines = result.stdout.decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{embedded_clip()}: ")


@closes_a_stream
def test_a_closed_standard_input_is_a_sentence() -> None:
    result = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *LIVE], capture_output=True, check=False)
    assert result.returncode == 2
    assert b"standard input is closed or a terminal" in result.stderr
