"""Run benchmarks: ``python -m benchmarks live file streams memory start share``; no name means all.

Results are added to a JSON file; ``--report`` turns it into the table and the plot of ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path

from benchmarks.figures import FIGURES, Plan
from benchmarks.prepare import Folders
from benchmarks.report import machine, write_report


def main() -> None:
    """Measure, print every number when it is known, and keep it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "nemostream-benchmarks")
    parser.add_argument("--results", type=Path, default=Path("benchmarks.json"))
    parser.add_argument("--quick", action="store_true", help="a small model, seconds of audio: do they run?")
    parser.add_argument("--seconds", type=float, default=20.0, help="of live audio")
    parser.add_argument("--file-seconds", type=float, default=600.0)
    parser.add_argument("--soak-steps", type=int, default=11_250, help="of the long session")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--latencies", type=int, nargs="+", default=[80, 320, 560, 1120])
    parser.add_argument("--no-peers", action="store_true", help="only nemostream")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write benchmarks.md and .png there")
    arguments = parser.parse_args()
    if unknown := set(arguments.figures) - set(FIGURES):
        parser.error(f"there is no figure {sorted(unknown)[0]!r}; the figures are {', '.join(FIGURES)}")
    # before any library starts a pool: waiting threads sleep, ours and everyone's
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    folders = Folders(arguments.models, "small" if arguments.quick else "full")
    plan = Plan(
        folders,
        arguments.seconds,
        arguments.file_seconds,
        tuple(arguments.threads),
        tuple(arguments.latencies),
        os.cpu_count() or 1,
        not arguments.no_peers,
        arguments.soak_steps,
    )
    if arguments.quick:
        plan = Plan(folders, 3.0, 10.0, (1,), (320,), 1, plan.peers, soak_steps=40)
    kept = json.loads(arguments.results.read_text()) if arguments.results.is_file() else {"rows": []}
    kept["machine"] = machine()
    for name in arguments.figures or FIGURES:
        for row in FIGURES[name](plan):
            print(f"{row.figure:8} {row.system:30} {row.setting:44} {row.value:10.3f} {row.unit}", flush=True)
            values = dataclasses.asdict(row)
            same = ("figure", "system", "setting", "unit")
            kept["rows"] = [old for old in kept["rows"] if any(old[key] != values[key] for key in same)]
            kept["rows"].append(values)
            arguments.results.write_text(json.dumps(kept, indent=1))
    if arguments.report is not None:
        write_report(kept, arguments.report)


if __name__ == "__main__":
    main()
