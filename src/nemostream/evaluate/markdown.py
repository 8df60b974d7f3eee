"""Scores and comparisons as Markdown tables; rates in per cent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nemostream.evaluate.comparison import Comparison
from nemostream.evaluate.phrases import PhraseCount
from nemostream.evaluate.summary import METRIC, POOLED, Summary

Table = tuple[Sequence[str], list[list[str]]]  # head, rows


SPEED = "Speed on this machine, latency of a live stream"


def summary_table(summary: Summary) -> Table:
    """Error rates by language and pooled."""
    head = ("language", "metric", "utterances", "said", "rate %", "ins", "del", "sub", "CER %", "faultless %")
    rows = [
        [
            group.name,
            METRIC[group.unit],
            str(group.utterances),
            str(group.errors.units),
            _percent(group.errors.rate),
            *map(str, (group.errors.insertions, group.errors.deletions, group.errors.substitutions)),
            _percent(group.characters.rate),
            _percent(1 - group.utterances_wrong / group.utterances, 0),
        ]
        for group in summary.groups
    ]
    return head, rows


def formatting_table(summary: Summary) -> Table:
    """Punctuation and capitals."""
    rows = [
        [name, str(score.right + score.missing), *map(_share, (score.precision, score.recall, score.f1))]
        for name, score in (summary.formatting or {}).items()
        if score.right + score.missing + score.extra
    ]
    return ("mark", "in the reference", "precision %", "recall %", "F1 %"), rows


def language_table(summary: Summary) -> Table:
    """Languages that the model found out."""
    rows = [
        [
            score.name,
            str(score.utterances),
            _percent(score.accuracy, 1),
            str(score.unnamed),
            ", ".join(f"{name} {count}" for name, count in score.mistaken.items()) or "-",
        ]
        for score in summary.languages
    ]
    return ("language", "utterances", "named right %", "named none", "taken for"), rows


def confidence_table(summary: Summary) -> Table:
    """Confidence of right and wrong words."""
    head = (
        "words heard right",
        "mean confidence",
        "words heard wrong",
        "mean confidence",
        "separation (ROC area)",
    )
    score = summary.confidence
    if score is None:
        return head, []
    cells = (score.mean_right, score.mean_wrong, score.separation)
    right, wrong, separation = ("-" if value is None else f"{value:.3f}" for value in cells)
    return head, [[str(score.right), right, str(score.wrong), wrong, separation]]


def phrase_table(counts: Sequence[tuple[str, Sequence[PhraseCount]]]) -> Table:
    """Phrases that were boosted, by evaluation, and all of them together."""
    rows = []
    for name, phrases in counts:
        total = PhraseCount(
            "all",
            sum(item.said for item in phrases),
            sum(item.heard for item in phrases),
            sum(item.invented for item in phrases),
        )
        rows += [
            [name, item.phrase, str(item.said), _share(item.recall), str(item.invented)]
            for item in (*phrases, total)
        ]
    return ("evaluation", "phrase", "said", "recall %", "invented"), rows


def timing_table(summaries: Iterable[Summary]) -> Table:
    """Speed and latency."""
    rows = []
    for summary in summaries:
        timing = summary.timing
        first = timing.first_word
        rows.append(
            [
                summary.name,
                f"{timing.real_time_factor:.3f}",
                *([_milliseconds(value) for value in first] if first else ["-", "-"]),
                *(_milliseconds(value) for value in timing.final),
            ]
        )
    head = ("evaluation", "RTF", "first word ms, median", "95 %", "final text ms, median", "95 %")
    return head, rows


def comparison_table(comparison: Comparison) -> Table:
    """The table of a port against its original."""
    head = (
        "language", "metric", f"{comparison.a} %", f"{comparison.b} %", "Δ (95 % CI)", "identical %",
        "divergence %",
    )  # fmt: skip
    rows = [
        [
            row.name,
            METRIC[row.unit],
            _percent(row.a.rate),
            _percent(row.b.rate),
            f"{_signed(row.delta.difference)} ({_signed(row.delta.low)}…{_signed(row.delta.high)})",
            _percent(row.identical, 0),
            _percent(row.divergence.rate),
        ]
        for row in comparison.rows
    ]
    return head, rows


def verdict(comparison: Comparison) -> list[str]:
    """One sentence for each pooled difference."""
    sentences = []
    for row in comparison.rows:
        if row.name not in POOLED.values():
            continue
        if row.delta.significant:
            sure = f"{comparison.b} is {'worse' if row.delta.difference > 0 else 'better'}"
        else:
            sure = "not distinguishable from zero"
        sentences.append(f"{row.name}: Δ {_signed(row.delta.difference)} points, {sure}.")
    return sentences


def to_markdown(table: Table) -> str:
    """Write a table in Markdown."""
    head, rows = table
    lines = [list(head), ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def summary_markdown(summary: Summary) -> str:
    """One evaluation as a Markdown document."""
    parts = [
        f"## {summary.name}\n",
        f"{summary.about} Normaliser: {summary.normalizer}.\n",
        to_markdown(summary_table(summary)),
    ]
    for title, table in extra_tables(summary):
        parts += [f"### {title}\n", to_markdown(table)]
    parts += [f"### {SPEED}\n", to_markdown(timing_table([summary]))]
    return "\n".join(parts)


def extra_tables(summary: Summary) -> list[tuple[str, Table]]:
    """Title and table of what an evaluation has besides error rates."""
    tables = (
        ("Punctuation and capitals, on words heard right", formatting_table(summary)),
        ("Languages that the model named", language_table(summary)),
        ("Confidence of words", confidence_table(summary)),
    )
    return [(title, table) for title, table in tables if table[1]]


def comparison_markdown(comparison: Comparison) -> str:
    """A comparison as a Markdown document."""
    note = (
        f"Normaliser: {comparison.normalizer}. Intervals: paired bootstrap, {comparison.resamples:,} "
        f"resamples, stratified by language, seed {comparison.seed}. Identical: share of equal normalised "
        f"transcripts. "
        f"Divergence: {comparison.b} scored against {comparison.a}.\n"
    )
    title = f"## {comparison.b} against {comparison.a}\n"
    verdicts = "".join(f"- {sentence}\n" for sentence in verdict(comparison))
    return "\n".join([title, to_markdown(comparison_table(comparison)), note, verdicts])


def _percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"


def _share(share: float | None) -> str:
    return "-" if share is None else _percent(share, 1)


def _signed(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"
