"""``nemostream bench``: measurements of a model on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from nemostream.cli.bench_calls import add_calls
from nemostream.cli.model_options import LATENCIES, add_model_options, latency, load_model, positive
from nemostream.cli.progress import progress_bar

if TYPE_CHECKING:
    from nemostream.evaluate.summary import Summary

_LATENCY = """\
Run a model over a manifest at every latency, as live streams, and show what each costs and gives: error rate,
time until the first word, time until the final text, seconds of computing per second of audio.
"""


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("bench", help="measure a model on this machine", parents=[common])
    kinds = parser.add_subparsers(title="measurements", metavar="KIND", required=True)
    measure = kinds.add_parser(
        "latency",
        help="latency against accuracy",
        description=_LATENCY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    measure.add_argument("manifest", type=Path, metavar="MANIFEST", help="JSON lines, see `nemostream eval`")
    add_model_options(measure)
    measure.add_argument("-l", "--language", help="prompt for all; default: the manifest's")
    measure.add_argument(
        "--latency", type=latency, nargs="+", default=list(LATENCIES), metavar="MS", help="default: all"
    )
    measure.add_argument("--limit", type=positive, metavar="N", help="use the first N utterances only")
    measure.add_argument(
        "--normalizer", choices=("simple", "whisper", "none"), default="simple", help="default: simple"
    )
    measure.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    measure.add_argument("--html", type=Path, metavar="FILE", help="also write a report with plots")
    measure.set_defaults(run=run, parser=measure)
    add_calls(kinds, common)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from nemostream.evaluate.manifest import read_manifest
    from nemostream.evaluate.markdown import to_markdown
    from nemostream.evaluate.run import evaluate
    from nemostream.evaluate.summary import summarize

    utterances = read_manifest(arguments.manifest, arguments.limit)
    model = load_model(arguments)
    results = []
    for milliseconds in arguments.latency:
        name = f"{milliseconds} ms"
        with progress_bar(name, arguments.quiet) as progress:
            results.append(
                evaluate(
                    model,
                    utterances,
                    name=name,
                    model_name=arguments.model,
                    manifest=str(arguments.manifest),
                    att_context=model.att_context(milliseconds),
                    language=arguments.language,
                    progress=progress,
                )
            )
    summaries = [summarize(item, arguments.normalizer) for item in results]
    if arguments.json:
        print(json.dumps([summary.to_dict() for summary in summaries], ensure_ascii=False))
    else:
        print(to_markdown(latency_table(summaries)), end="")
    if arguments.html is not None:
        from nemostream.evaluate.html import html_report

        arguments.html.write_text(html_report(results, summaries, None), encoding="utf-8")
    return 0


def latency_table(summaries: list[Summary]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: error rates beside latencies, one row a setting."""
    from nemostream.evaluate.markdown import timing_table
    from nemostream.evaluate.summary import POOLED

    pools = [group.name for group in summaries[0].groups if group.name in POOLED.values()]
    head, timings = timing_table(summaries)
    rows = []
    for summary, timing in zip(summaries, timings, strict=True):
        groups = [summary.group(name) for name in pools]
        rates = [f"{100 * group.errors.rate:.2f}" for group in groups if group is not None]
        rows.append([timing[0], *rates, *timing[1:]])
    return ["latency", *(f"{name} %" for name in pools), *head[1:]], rows
