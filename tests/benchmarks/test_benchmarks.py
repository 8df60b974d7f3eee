"""The benchmarks' scripts run, on a small model; what they measure is nobody's business here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.long
def test_quick_benchmarks_run_and_report(tmp_path: Path) -> None:
    peers = [] if find_spec("sherpa_onnx") and find_spec("transformers") else ["--no-peers"]
    results = tmp_path / "results.json"
    command = [
        *(sys.executable, "-m", "benchmarks", "--quick", *peers),
        *("--models", tmp_path / "models", "--results", results),
        *(("--report", tmp_path / "docs") if find_spec("matplotlib") else ()),
    ]
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    subprocess.run(command, check=True, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": paths})
    rows = json.loads(results.read_text())["rows"]
    assert {row["figure"] for row in rows} == {
        "live",
        "file",
        "streams",
        "memory",
        "start",
        "share",
        "weights",
    }
    assert all(row["value"] == row["value"] for row in rows)  # no NaN
    if find_spec("matplotlib"):
        assert (tmp_path / "docs" / "benchmarks.png").stat().st_size > 1000
        assert "| nemostream int8 | 320 ms, 1 thread |" in (tmp_path / "docs" / "benchmarks.md").read_text()
