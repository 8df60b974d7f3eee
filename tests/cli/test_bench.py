"""`nemostream bench latency`: one row for every latency."""

from __future__ import annotations

import json
from pathlib import Path

import soundfile

from tests.cli.conftest import RATE, Run, noise


def test_latency_table(run: Run, model_folder: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", noise(1.5), RATE)
    manifest = tmp_path / "m.jsonl"
    manifest.write_text(json.dumps({"audio_filepath": "a.flac", "text": "w1 w2", "lang": "de-DE"}))
    options = ("--model", model_folder, "--latency", 80, 320, 1120)
    done = run("bench", "latency", manifest, *options, "--html", tmp_path / "b.html")
    assert done.code == 0
    head, _, *rows = done.out.splitlines()
    assert head.startswith("| latency | pooled WER % | RTF | first word ms, median |")
    assert [row.split("|")[1].strip() for row in rows] == ["80 ms", "320 ms", "1120 ms"]
    assert "<svg" in (tmp_path / "b.html").read_text()
    summaries = json.loads(run("bench", "latency", manifest, *options, "--json").out)
    assert [summary["name"] for summary in summaries] == ["80 ms", "320 ms", "1120 ms"]
    assert all(summary["timing"]["first_word"] is not None for summary in summaries)
