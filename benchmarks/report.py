"""From results to a page: machine, table, plot."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("nemostream", "onnxruntime", "sherpa-onnx", "transformers", "torch", "numpy")
_TITLES = {
    "live": "(a) One live stream: seconds of computation per second of audio",
    "file": "(b) A recording: seconds of audio per second",
    "streams": "(c) Streams sustained in real time",
    "memory": "(d) Memory, and a long session",
    "start": "(e) From the start of a process to its first token",
    "share": "(f) Decoding and features, as a part of a step",
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
        "load average": f"{os.getloadavg()[0]:.1f}",
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
    lines = [MARKER, "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in results["machine"].items()]
    for figure, title in _TITLES.items():
        rows = [row for row in results["rows"] if row["figure"] == figure]
        if rows:
            lines += ["", f"## {title}", "", "| system | setting | | |", "|---|---|---:|---|"]
            lines += [
                f"| {row['system']} | {row['setting']} | {row['value']:.3g} | {row['unit']} |" for row in rows
            ]
    lines += ["", "![Real-time factor of one stream](benchmarks.png)"]
    page.write_text(above + "\n".join(lines) + "\n", encoding="utf-8")
    _plot(results["rows"], folder / "benchmarks.png")


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [row for row in rows if row["figure"] == "live" and row["unit"] == "RTF"]
    names = [f"{row['system']}, {row['setting']}" for row in shown]
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.28 * len(shown)))
    colours = ["tab:blue" if row["system"].startswith("nemostream") else "tab:grey" for row in shown]
    axes.barh(names, [row["value"] for row in shown], color=colours)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("seconds of computation per second of audio (real-time factor); less is better")
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
