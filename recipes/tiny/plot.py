"""Draw the training curve of a run from its log.

python recipes/tiny/plot.py work/run --out recipes/tiny/training.png
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

Row = dict[str, float]


def read_log(path: Path) -> tuple[list[dict[str, object]], list[Row]]:
    """Heads (one for each start of the run) and rows; rows that a later start did again are left out."""
    heads, rows = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "schedule" in entry:
            heads.append(entry)
        else:
            rows = [row for row in rows if row["step"] < entry["step"]]
            rows.append(entry)
    return heads, rows


def draw(rows: list[Row], path: Path) -> None:
    """Losses and learning rate over the hours of audio seen."""
    hours = [row["hours"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    axes.plot(hours, [row["rnnt"] for row in rows], label="RNN-T, nats a piece")
    axes.plot(hours, [row["phone"] for row in rows], label="CTC of phones, nats a phone")
    known = [row["rnnt"] for row in rows if not math.isnan(row["rnnt"])]
    top = 2 * max(known) if known else None  # a new head for phones begins far above that
    axes.set(xlabel="hours of audio seen", ylabel="training loss", ylim=(0, top))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right")
    rate = axes.twinx()
    rate.plot(hours, [row["rate"] for row in rows], color="grey", linestyle=":")
    rate.set(ylabel="learning rate (dotted)", ylim=(0, None))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder that train.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="PNG file to write")
    arguments = parser.parse_args(argv)
    draw(read_log(arguments.run / "log.jsonl")[1], arguments.out)


if __name__ == "__main__":
    main()
