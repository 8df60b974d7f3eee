"""From results to a page: machine, table, plot."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.targets import targets

_PACKAGES = ("nemostream", "onnxruntime", "sherpa-onnx", "transformers", "torch", "numpy")
_TITLES = {
    "live": "(a) One live stream: seconds of computation per second of audio",
    "file": "(b) A recording: seconds of audio per second",
    "streams": "(c) Streams sustained in real time",
    "memory": "(d) Memory, and a long session",
    "start": "(e) From the start of a process to its first word",
    "share": "(f) Decoding and features, as a part of a step",
    "weights": "(g) What smaller weights cost the embedded model",
}
MARKER = "<!-- what follows is written by `python -m benchmarks --report docs` -->"


def machine() -> dict[str, str]:
    """Processor, cores, load and versions."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
        flags = next((line.split() for line in lines if line.startswith("flags")), [])
        wanted = ("avx512_vnni", "avx512_bf16", "amx_int8")
        name += f" ({', '.join(flag for flag in wanted if flag in flags)})"
    facts = {
        "processor": name,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "source tree"
    return facts


def write_report(results: dict[str, Any], folder: Path) -> None:
    """Write ``benchmarks.png``, and ``benchmarks.md`` below what a person wrote in it above `MARKER`."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "benchmarks.md"
    above = page.read_text(encoding="utf-8").partition(MARKER)[0] if page.is_file() else "# Benchmarks\n\n"
    rows = results["rows"]
    lines = [MARKER, "", "## Targets", "", "| target | measured | |", "|---|---:|---|"]
    for target in targets(rows):
        found = "" if target.found is None else f"{target.found:.3g}{target.unit}"
        lines.append(f"| {target.wish} | {found} | {target.verdict} |")
    lines += ["", "## Machine", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in results["machine"].items()]
    for figure, title in _TITLES.items():
        shown = [row for row in rows if row["figure"] == figure]
        if shown:
            lines += ["", f"## {title}", "", _origin(figure, results["runs"]), ""]
            lines += _weights(shown) if figure == "weights" else _numbers(shown)
    lines += ["", "![Real-time factor of one stream, and streams sustained](benchmarks.png)"]
    page.write_text(above + "\n".join(lines) + "\n", encoding="utf-8")
    _plot(rows, folder / "benchmarks.png")


def _origin(figure: str, runs: dict[str, Any]) -> str:
    """How to get a figure, and what the machine did besides."""
    command = f"`python -m benchmarks {figure}`"
    if figure not in runs:
        return f"{command}; interrupted, so it may be incomplete."
    before, after = runs[figure]["load"]
    return f"{command}, {runs[figure]['seconds']} s; load average {before} before and {after} after."


def _numbers(rows: list[dict[str, Any]]) -> list[str]:
    return [
        *("| system | setting | | |", "|---|---|---:|---|"),
        *(f"| {row['system']} | {row['setting']} | {row['value']:.3g} | {row['unit']} |" for row in rows),
    ]


def _weights(rows: list[dict[str, Any]]) -> list[str]:
    """One line for each recording and form of weights."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        found.setdefault((row["setting"], row["system"]), {})[row["unit"]] = row["value"]
    lines = [
        "| on | seconds | weights | largest difference | cosine | tokens that agree | WER | WER of PyTorch |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for (on, form), value in found.items():
        cells = [
            on,
            f"{value['seconds']:g}",
            form,
            f"{value['max_abs']:.2g}",
            f"{value['cosine']:.4f}",
            f"{100 * value['token_agreement']:.1f} %",
            *(f"{100 * value[key]:.1f} %" if key in value else "" for key in ("wer", "wer_fp32")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    live = [row for row in rows if row["figure"] == "live" and row["unit"] == "RTF"]
    streams = [row for row in rows if row["figure"] == "streams"]
    heights = [max(len(shown), 1) for shown in (live, streams)]
    figure, panels = plt.subplots(
        2, figsize=(9, 1.6 + 0.28 * sum(heights)), gridspec_kw={"height_ratios": heights}, squeeze=True
    )
    for axes, shown in zip(panels, (live, streams), strict=True):
        colours = ["tab:blue" if row["system"].startswith("nemostream") else "tab:grey" for row in shown]
        names = [f"{row['system']}, {row['setting']}" for row in shown]
        axes.barh(names, [row["value"] for row in shown], color=colours)
        axes.invert_yaxis()
    panels[0].axvline(1.0, color="black", linewidth=0.8)
    panels[0].set_xscale("log")
    panels[0].set_xlabel("seconds of computation per second of audio (real-time factor); less is better")
    panels[1].set_xlabel("streams sustained in real time; more is better")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
