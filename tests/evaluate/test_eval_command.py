"""`nemostream eval`: from recordings to tables and a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from nemostream.engine.model import Model
from nemostream.evaluate.comparison import compare
from nemostream.evaluate.html import html_report
from nemostream.evaluate.manifest import ManifestError, Utterance
from nemostream.evaluate.markdown import summary_markdown
from nemostream.evaluate.phrases import count_phrases
from nemostream.evaluate.results import Heard, Results
from nemostream.evaluate.run import hear
from nemostream.evaluate.summary import summarize
from nemostream.runtimes.torch import TorchRuntime
from tests.cli.conftest import RATE, Run, model_folder, noise, run
from tests.models import small_checkpoint, small_config

__all__ = ["model_folder", "run"]


def heard(key: str, lang: str, reference: str, text: str) -> Heard:
    return Heard(key, lang, reference, text, 2.0, 0.1, 0.4, 0.3)


def results(name: str, *texts: str) -> Results:
    said = (
        ("a", "en", "Hello, dear world."),
        ("b", "en", "Good day."),
        ("c", "de", "Guten Tag"),
        ("d", "ja", "日本語"),
    )
    items = tuple(heard(*about, text) for about, text in zip(said, texts, strict=True))
    return Results(name, name, "onnx", (56, 3), "m.jsonl", items)


A = results("first", "Hello, dear word.", "good day", "guten tag", "日本語")
B = results("second", "hello deer word", "good day", "guten", "日本")


def test_summary_by_language_and_pooled() -> None:
    summary = summarize(B)
    rates = {group.name: (group.errors.total, group.errors.units) for group in summary.groups}
    assert rates == {"de": (1, 2), "en": (2, 5), "ja": (1, 3), "pooled WER": (3, 7), "pooled CER": (1, 3)}
    assert summary.timing.real_time_factor == pytest.approx(0.05)
    assert summary.formatting is not None
    assert summary.formatting["capital"].missing == 2  # "Hello" and "Good"


def test_comparison() -> None:
    comparison = compare(A, B, resamples=200)
    rows = {row.name: row for row in comparison.rows}
    assert rows["en"].identical == 0.5
    assert rows["en"].divergence.total == 1  # "dear" became "deer"; both heard "word"
    assert rows["pooled WER"].delta.difference == pytest.approx(2 / 7)
    assert rows["de"].delta.difference == pytest.approx(0.5)
    with pytest.raises(ManifestError, match="not of the same utterances"):
        compare(A, replace(B, utterances=B.utterances[1:]))


def test_the_report_is_one_file_that_shows_the_errors() -> None:
    odd = replace(B, name="<second> & co")
    page = html_report([A, odd], [summarize(A), summarize(odd)], compare(A, odd, resamples=50))
    assert "<del>dear world</del><ins>deer word</ins>" in page
    assert page.count("<svg") == 3
    assert "&lt;second&gt; &amp; co" in page
    assert "<second>" not in page
    assert "<script" not in page
    assert "src=" not in page


def test_languages_that_a_model_named() -> None:
    named = ("en-US", "de-DE", "de", None)
    items = tuple(replace(item, named=name) for item, name in zip(A.utterances, named, strict=True))
    told = summarize(replace(A, utterances=items))
    assert told.languages == ()  # it was told, so that there was nothing to find out
    found = summarize(replace(A, utterances=items, language="auto")).languages
    assert [(score.name, score.utterances, score.accuracy, score.unnamed) for score in found] == [
        ("de", 1, 1.0, 0), ("en", 2, 0.5, 0), ("ja", 1, 0.0, 1), ("all", 4, 0.5, 1),
    ]  # fmt: skip
    assert found[1].mistaken == {"de": 1}
    document = summary_markdown(summarize(replace(A, utterances=items, language="auto")))
    assert "| en | 2 | 50.0 | 0 | de 1 |" in document
    page = html_report([replace(A, utterances=items, language="auto")], [summarize(A)], None)
    assert "first [en-US]" in page


def test_confidence_of_right_and_wrong_words() -> None:
    """Two right words (0.9, 0.5) and two wrong ones (0.7, 0.1): three of the four pairs are in order."""
    words = (("Hello,", 0.9), ("deer", 0.7), ("world", 0.5), ("-", 0.99), ("now", 0.1))
    item = replace(A.utterances[0], text="Hello, deer world - now", words=words)
    japanese = replace(A.utterances[3], words=(("日", 0.3),))  # scored by characters, so not judged
    score = summarize(replace(A, utterances=(item, japanese))).confidence
    assert score is not None
    assert (score.right, score.wrong, score.separation) == (2, 2, 0.75)
    assert (score.mean_right, score.mean_wrong) == (pytest.approx(0.7), pytest.approx(0.4))
    assert summarize(A).confidence is None


def test_phrases_are_counted_as_whole_words() -> None:
    counts = count_phrases(A, ["dear word", "Good Day", "day", "tag", "本語", "orl"], "simple")
    assert [(c.said, c.heard, c.invented) for c in counts] == [
        (0, 0, 1), (1, 1, 0), (1, 1, 0), (1, 1, 0), (1, 1, 0), (0, 0, 0),
    ]  # fmt: skip
    assert counts[0].recall is None


def test_results_file(tmp_path: Path) -> None:
    kept = replace(
        A, language="auto", utterances=(replace(A.utterances[0], named="en-US", words=(("Hello,", 0.5),)),)
    )
    for results in (A, kept):
        results.save(tmp_path / "a.json")
        assert Results.load(tmp_path / "a.json") == results
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ManifestError, match=r"b\.json is not a results file"):
        Results.load(tmp_path / "b.json")


def test_virtual_clock() -> None:
    """Processing that takes no time leaves the algorithmic latency; a second a packet is waited for."""
    model = Model(TorchRuntime(small_checkpoint(small_config())))
    samples = noise(2.0, 1)[:, 0]
    utterance = Utterance(Path("x.wav"), "x", "en", "x.wav")
    fast = hear(model, samples, utterance, "en-US", (56, 3), clock=lambda: 0.0)
    assert fast.final == 0.0
    assert fast.first_word is not None
    assert 0.08 <= fast.first_word <= 0.42  # 320 ms, less where in its chunk the word was, and a packet
    ticks = iter(range(10**6))
    slow = hear(model, samples, utterance, "en-US", (56, 3), clock=lambda: float(next(ticks)))
    assert slow.text == fast.text
    assert slow.compute == 101  # 100 packets and the end
    assert slow.final == pytest.approx(101 + 0.02 - 2.0)


def test_command(run: Run, model_folder: Path, tmp_path: Path) -> None:
    lines = []
    for index, lang in enumerate(("en", "en-US", "de")):
        soundfile.write(tmp_path / f"{index}.flac", noise(1.5, index), RATE)
        lines.append(json.dumps({"audio_filepath": f"{index}.flac", "text": "w1 w2 w3", "lang": lang}))
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("\n".join(lines))
    one = run("eval", manifest, "--model", model_folder, "--name", "one", "-o", tmp_path / "out")
    assert one.code == 0
    assert "| pooled WER | WER | 3 | 9 |" in one.out
    two = run(
        "eval", manifest, "--model", model_folder, "--name", "two", "--latency", 80, "-o", tmp_path / "out"
    )
    assert two.code == 0
    files = (tmp_path / "out" / "one.json", tmp_path / "out" / "two.json")
    both = run("eval", "--compare", *files, "--json", "-o", tmp_path / "both", "--resamples", 100)
    assert both.code == 0
    content = json.loads(both.out)
    assert [row["name"] for row in content["comparison"]["rows"]] == ["de", "en", "pooled WER"]
    assert (tmp_path / "both" / "report.html").read_text().startswith("<!doctype html>")
    assert "two against one" in (tmp_path / "both" / "report.md").read_text()
    boosted = run("eval", manifest, "--model", model_folder, "--boost", "w1 w2", "--beam", 2, "--confidence")
    assert "| all | 3 |" in boosted.out
    assert "separation (ROC area)" in boosted.out
    found = run("eval", manifest, "--model", model_folder, "-l", "auto", "--json")
    assert {entry["name"] for entry in json.loads(found.out)["summaries"][0]["languages"]} == {
        "de",
        "en",
        "all",
    }
    missing = run("eval", "--compare", "a", "b")
    assert missing.code == 2
    assert "MANIFEST" in missing.err


def test_what_is_wrong_is_said_before_the_work(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "nowhere.wav", "text": "a"}')
    for arguments, code, sentence in (
        (("nowhere.jsonl",), 1, "cannot be read as a manifest (No such file or directory)"),
        (("m.jsonl", "-o", tmp_path / "file"), 1, "the output folder cannot be made"),
        (("m.jsonl", "--name", "a/b"), 2, "without a folder"),
        (("m.jsonl", "-l", "xx-XX"), 3, "there is no such file"),
        ((), 2, "MANIFEST"),
    ):
        result = run("eval", *(tmp_path / a if str(a).endswith("jsonl") else a for a in arguments))
        assert (result.code, result.out) == (code, "")
        assert len(result.err.splitlines()) == 1
        assert sentence in result.err
