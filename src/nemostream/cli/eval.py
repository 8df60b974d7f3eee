"""``nemostream eval``: error rates on a manifest, and how two models or runs compare."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemostream.cli.decoding_options import (
    add_decoding_options,
    boosted_phrases,
    check_decoding_usage,
    decoding_options,
)
from nemostream.cli.messages import report_note
from nemostream.cli.model_options import add_model_options, add_recognition_options, load_model, positive
from nemostream.cli.progress import progress_bar
from nemostream.errors import NemostreamError

if TYPE_CHECKING:
    from nemostream.evaluate.comparison import Comparison
    from nemostream.evaluate.results import Results
    from nemostream.evaluate.summary import Summary

_DESCRIPTION = """\
Transcribe the recordings of a manifest (a JSON object a line: audio_filepath, text, lang) as live streams,
and count errors; this needs `pip install 'nemostream[eval]'`. With --compare, two runs are compared: each is
a results file that -o wrote before, or a model, which is then run on the manifest.
"""
_EPILOG = """\
examples:
  nemostream eval test/manifest.jsonl --model model-onnx -o results
  nemostream eval test/manifest.jsonl --compare model.nemo model-onnx -o comparison
  nemostream eval --compare results/a.json results/b.json --normalizer whisper
"""


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "eval",
        help="word error rates on a manifest, and comparisons with confidence",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument("manifest", nargs="?", type=Path, metavar="MANIFEST", help="JSON lines")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="results files, or models to run")
    parser.add_argument("--limit", type=positive, metavar="N", help="use the first N utterances only")
    parser.add_argument("--name", help="what to call the results; default: the model's name")
    parser.add_argument(
        "--normalizer", choices=("simple", "whisper", "none"), default="simple", help="default: simple"
    )
    parser.add_argument("--resamples", type=positive, default=2000, help="of the bootstrap; default: 2000")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap; default: 0")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument(
        "-o", "--output-dir", type=Path, metavar="DIR", help="also write results, .json, .md and .html there"
    )
    add_model_options(parser)
    add_recognition_options(
        parser, language="prompt for all; default: the manifest's; auto: found out, and reported"
    )
    add_decoding_options(
        parser, confidence="report how well it tells right words from wrong ones", endpoint=False
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, print, write."""
    from nemostream.evaluate.comparison import compare
    from nemostream.evaluate.markdown import phrase_table, to_markdown
    from nemostream.evaluate.phrases import count_phrases
    from nemostream.evaluate.summary import summarize

    check_decoding_usage(arguments)
    if arguments.name is not None and Path(arguments.name).name != arguments.name:
        arguments.parser.error(f"--name {arguments.name}: a name for a file was expected, without a folder")
    if arguments.output_dir is not None:  # before the work, so that it is not lost
        try:
            arguments.output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NemostreamError(
                f"{arguments.output_dir}: the output folder cannot be made ({error.strerror})."
            ) from error
    phrases = boosted_phrases(arguments)
    sources: list[str] = arguments.compare or [arguments.model]
    results = [_results(source, arguments) for source in sources]
    if len(results) == 2 and results[0].name == results[1].name:
        arguments.parser.error(f"both are called {results[0].name}; rename one results file")
    summaries = [summarize(item, arguments.normalizer) for item in results]
    comparison = None
    if arguments.compare:
        first, second = results
        comparison = compare(
            first, second, arguments.normalizer, resamples=arguments.resamples, seed=arguments.seed
        )
    document = _markdown(summaries, comparison)
    content: dict[str, Any] = {"summaries": [summary.to_dict() for summary in summaries]}
    if phrases:
        counts = [(item.name, count_phrases(item, phrases, arguments.normalizer)) for item in results]
        document += "\n" + to_markdown(phrase_table(counts))
        content["phrases"] = {name: [asdict(count) for count in found] for name, found in counts}
    if comparison is not None:
        content["comparison"] = comparison.to_dict()
    print(json.dumps(content, ensure_ascii=False) if arguments.json else document)
    if arguments.output_dir is not None:
        _write(arguments.output_dir, results, summaries, comparison, document, content)
        if not arguments.quiet:
            report_note(f"{arguments.output_dir} holds the results and report.html.")
    return 0


def _results(source: str, arguments: argparse.Namespace) -> Results:
    """Read a results file, or run a model."""
    from nemostream.evaluate.results import Results

    path = Path(source)
    if arguments.compare and path.suffix == ".json" and path.is_file():
        return Results.load(path)
    if arguments.manifest is None:
        arguments.parser.error(f"{source} is a model, so a MANIFEST to run it on has to be given")
    from nemostream.evaluate.manifest import read_manifest
    from nemostream.evaluate.run import evaluate

    utterances = read_manifest(arguments.manifest, arguments.limit)
    options = decoding_options(arguments)
    model = load_model(arguments, source)
    with progress_bar(source, arguments.quiet) as progress:
        return evaluate(
            model,
            utterances,
            name=(None if arguments.compare else arguments.name) or Path(source).name,
            model_name=source,
            manifest=str(arguments.manifest),
            att_context=model.att_context(arguments.latency, arguments.att_context),
            language=arguments.language,
            progress=progress,
            **options,
        )


def _markdown(summaries: Sequence[Summary], comparison: Comparison | None) -> str:
    from nemostream.evaluate.markdown import comparison_markdown, summary_markdown

    parts = [comparison_markdown(comparison)] if comparison is not None else []
    return "\n".join([*parts, *map(summary_markdown, summaries)])


def _write(
    folder: Path,
    results: Sequence[Results],
    summaries: Sequence[Summary],
    comparison: Comparison | None,
    document: str,
    content: dict[str, Any],
) -> None:
    from nemostream.evaluate.html import html_report

    for item in results:
        item.save(folder / f"{item.name}.json")
    (folder / "report.md").write_text(document, encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
    page = html_report(results, summaries, comparison)
    (folder / "report.html").write_text(page, encoding="utf-8")
