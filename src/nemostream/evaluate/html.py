"""A report as one HTML file that needs nothing else: tables, plots as SVG, aligned transcripts."""

from __future__ import annotations

import html
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nemostream.checkpoints.files import optional_module
from nemostream.evaluate.comparison import Comparison
from nemostream.evaluate.errors import align, unit_of, units_of
from nemostream.evaluate.languages import AUTO
from nemostream.evaluate.markdown import (
    SPEED,
    Table,
    comparison_table,
    extra_tables,
    summary_table,
    timing_table,
    verdict,
)
from nemostream.evaluate.normalize import normalizer
from nemostream.evaluate.results import Heard, Results
from nemostream.evaluate.summary import POOLED, Summary, utterance_errors

MOST_TRANSCRIPTS = 100
_MOST_CONFUSIONS = 15
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .2rem .7rem; text-align: right }
th { border-bottom: 1px solid #888 } td:first-child, th:first-child { text-align: left }
tr:nth-child(even) { background: #f5f5f5 } .plots svg { max-width: 100%; height: auto }
.utterance { margin: 1rem 0; border-left: 3px solid #ddd; padding-left: 1rem } .key { color: #777 }
del { color: #b00; background: #fee } ins { color: #06b; background: #e6f2ff; text-decoration: none }
"""


def html_report(
    results: Sequence[Results], summaries: Sequence[Summary], comparison: Comparison | None
) -> str:
    """Return the report of one evaluation or more, and of how two compare.

    Args:
        results: the evaluations.
        summaries: their scores, in the same order and with the same normaliser.
        comparison: of two of them, if wanted.

    Raises:
        BackendError: if matplotlib is not installed.
    """
    parts = [f"<h1>{_escape(' and '.join(item.name for item in results))}</h1>"]
    parts.append(f"<p>Normaliser: {summaries[0].normalizer}.</p>")
    if comparison is not None:
        parts.append(f"<h2>{_escape(comparison.b)} against {_escape(comparison.a)}</h2>")
        parts.append(_table(comparison_table(comparison)))
        parts += [f"<p>{_escape(sentence)}</p>" for sentence in verdict(comparison)]
    parts.append("<div class=plots>")
    parts += [_plot(_draw_rates, summaries), _plot(_draw_trade_off, summaries)]
    parts += [_plot(_draw_kinds, summaries), "</div>"]
    for summary in summaries:
        parts += [f"<h2>{_escape(summary.name)}</h2>", _table(summary_table(summary))]
        parts.insert(-1, f"<p>{_escape(summary.about)}</p>")
        for heading, table in extra_tables(summary):
            parts += [f"<h3>{heading}</h3>", _table(table)]
    parts += [f"<h2>{SPEED}</h2>", _table(timing_table(summaries)), "<h2>Where the errors are</h2>"]
    for item, summary in zip(results, summaries, strict=True):
        parts += [f"<h3>{_escape(item.name)}</h3>", _table(_confusions(item, summary))]
    parts.append(f"<h2>Transcripts</h2><p>The {MOST_TRANSCRIPTS} with the most errors.</p>")
    parts += list(_transcripts(results, summaries))
    title = _escape(" · ".join(item.name for item in results))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _plot(draw: Callable[[Any, Sequence[Summary]], None], summaries: Sequence[Summary]) -> str:
    """Draw on fresh axes and return the SVG element."""
    figure_module = optional_module("matplotlib.figure", "eval", "An HTML report")
    figure = figure_module.Figure(figsize=(8, 3.2), layout="constrained")
    draw(figure.subplots(), summaries)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    svg = stream.getvalue()
    return svg[svg.index("<svg") :]


def _draw_rates(axes: Any, summaries: Sequence[Summary]) -> None:
    names = [group.name for group in summaries[0].groups]
    width = 0.8 / len(summaries)
    for place, summary in enumerate(summaries):
        rates = [100 * group.errors.rate for group in summary.groups]
        axes.bar([x + place * width for x in range(len(names))], rates, width, label=summary.name)
    middle = 0.4 - width / 2
    axes.set_xticks([x + middle for x in range(len(names))], names, rotation=30, ha="right")
    axes.set(title="Errors by language", ylabel="WER or CER, %")
    _legend(axes)


def _draw_trade_off(axes: Any, summaries: Sequence[Summary]) -> None:
    for summary in summaries:
        pooled = [group for group in summary.groups if group.name in POOLED.values()]
        latency = (summary.timing.first_word or summary.timing.final)[0]
        for group in pooled:
            axes.plot(1000 * latency, 100 * group.errors.rate, "o")
            axes.annotate(
                f"{summary.name}, {group.name}",
                (1000 * latency, 100 * group.errors.rate),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
            )
    axes.set(title="Latency and errors", xlabel="first word, median, ms", ylabel="%")
    axes.margins(0.3)


def _draw_kinds(axes: Any, summaries: Sequence[Summary]) -> None:
    kinds = ("insertions", "deletions", "substitutions")
    names = [summary.name for summary in summaries]
    left = [0.0] * len(summaries)
    for kind in kinds:
        values = []
        for summary in summaries:
            pooled = [group.errors for group in summary.groups if group.name in POOLED.values()]
            units = sum(errors.units for errors in pooled) or 1
            values.append(100 * sum(getattr(errors, kind) for errors in pooled) / units)
        axes.barh(names, values, left=left, label=kind)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set(title="Kinds of errors", xlabel="% of what was said")
    axes.invert_yaxis()  # the first on top
    _legend(axes)


def _legend(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))  # beside the bars, not on them


def _confusions(results: Results, summary: Summary) -> Table:
    """The most frequent edits."""
    counts: Counter[tuple[str, str]] = Counter()
    normal = normalizer(summary.normalizer)
    for item in results.utterances:
        counts.update((said, heard) for kind, said, heard in _edits(item, normal) if kind != "equal")
    rows = [[said or "-", heard or "-", str(n)] for (said, heard), n in counts.most_common(_MOST_CONFUSIONS)]
    return ("said", "heard", "times"), rows


def _edits(item: Heard, normal: Callable[[str, str], str]) -> Iterator[tuple[str, str, str]]:
    """Yield kind, what was said and what was heard, in order, for one utterance."""
    unit = unit_of(item.lang)
    said, found = (units_of(normal(text, item.lang), unit) for text in (item.reference, item.text))
    if not said:
        if found:
            yield "insert", "", " ".join(found)
        return
    for chunk in align(said, found).alignments[0]:
        yield (
            chunk.type,
            " ".join(said[chunk.ref_start_idx : chunk.ref_end_idx]),
            " ".join(found[chunk.hyp_start_idx : chunk.hyp_end_idx]),
        )


def _transcripts(results: Sequence[Results], summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield the worst utterances with every evaluation's edits marked."""
    by_key = [{item.key: item for item in evaluation.utterances} for evaluation in results]
    totals: Counter[str] = Counter()
    for evaluation, summary in zip(results, summaries, strict=True):
        for item, errors in zip(
            evaluation.utterances, utterance_errors(evaluation, summary.normalizer), strict=True
        ):
            totals[item.key] += errors.total
    normal = normalizer(summaries[0].normalizer)
    for key, total in totals.most_common(MOST_TRANSCRIPTS):
        if not total:
            return
        yield f"<div class=utterance><div class=key>{_escape(key)}</div>"
        for evaluation, items in zip(results, by_key, strict=True):
            if key in items:
                line = " ".join(_marked(*edit) for edit in _edits(items[key], normal))
                named = f" [{items[key].named or 'no language'}]" if evaluation.language == AUTO else ""
                yield f"<div><b>{_escape(evaluation.name + named)}</b> {line}</div>"
        yield "</div>"


def _marked(kind: str, said: str, heard: str) -> str:
    if kind == "equal":
        return _escape(said)
    removed = f"<del>{_escape(said)}</del>" if said else ""
    added = f"<ins>{_escape(heard)}</ins>" if heard else ""
    return removed + added


def _table(table: Table) -> str:
    head, rows = table
    first = "".join(f"<th>{_escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{first}</tr>{body}</table>"


def _escape(text: str) -> str:
    return html.escape(text)
