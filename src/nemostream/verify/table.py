"""A `Report` as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from nemostream.verify.check import Report
from nemostream.verify.compare import StageResult


def report_table(report: Report, *, layers: bool) -> Table:
    """Return the table: one row a stage with ``layers``, else one row a layer with its worst stage."""
    table = Table(title=f"{report.source} ({report.runtime}, {report.weights}) against {report.against}")
    for name in ("stage", "", "max abs", "peak", "relative", "cosine", "compared"):
        table.add_column(name, justify="left" if name in ("stage", "") else "right", no_wrap=True)
    table.add_column("place", overflow="fold")
    rows = report.stages if layers else list(_one_a_layer(report.stages))
    first = report.first_divergence
    for row in rows:
        failed = not row.passed
        mark = "ok" if row.passed else "DIVERGES" if first and row.stage == first.stage else "differs"
        where = row.where if failed or layers else None
        place = "; ".join(text for text in (row.detail, where) if text)
        table.add_row(
            row.stage,
            mark,
            _number(row.max_abs),
            _number(row.peak),
            _number(row.relative),
            "" if row.cosine is None else f"{row.cosine:.6f}",
            f"{row.compared:,}",
            place,
            style="bold red" if mark == "DIVERGES" else "red" if failed else "",
        )
    return table


def summary(report: Report) -> str:
    """One sentence: what is wrong first, or that nothing is."""
    first = report.first_divergence
    if first is None:
        seen = sum(stage.stage.startswith("layers.") for stage in report.stages)
        inner = (
            f"{seen} inner stage{'s' if seen > 1 else ''} of the layers"
            if seen
            else "the encoder's output; its layers are hidden"
        )
        return f"{report.source} agrees with {report.against}, down to {inner}."
    facts = [text for text in (first.detail, first.where) if text]
    if first.peak is not None:
        facts.insert(0, f"relative error {_number(first.relative)}, peak {_number(first.peak)}")
    return f"{report.source} first diverges at {first.stage}: {'; '.join(facts)}."


def _one_a_layer(stages: Sequence[StageResult]) -> Iterator[StageResult]:
    """Keep of every layer its first failing stage, or else the one that is furthest off."""
    group: list[StageResult] = []
    for index, stage in enumerate(stages):
        if not stage.stage.startswith("layers."):
            yield stage
            continue
        group.append(stage)
        following = stages[index + 1].stage if index + 1 < len(stages) else ""
        if _layer(following) != _layer(stage.stage):
            failed = [item for item in group if not item.passed]
            yield failed[0] if failed else max(group, key=lambda item: item.relative or 0.0)
            group = []


def _layer(stage: str) -> str:
    return ".".join(stage.split(".")[:2])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
