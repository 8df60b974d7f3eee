"""Run benchmarks: ``python -m benchmarks live file streams memory start share weights``; no name means all.

Every number is added to a JSON file when it is known, so that a run that was interrupted goes on with
``--resume``; ``--report`` turns the file into the tables and plots of ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

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
    parser.add_argument("--resume", action="store_true", help="leave out the figures that are in the results")
    parser.add_argument("--quick", action="store_true", help="a small model, seconds of audio: do they run?")
    parser.add_argument("--seconds", type=float, default=12.0, help="of live audio")
    parser.add_argument("--file-seconds", type=float, default=600.0)
    parser.add_argument("--soak-steps", type=int, default=11_250, help="of the long session")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--latencies", type=int, nargs="+", default=[80, 320, 560, 1120])
    parser.add_argument(
        "--recordings", type=Path, nargs="+", default=[], help="or manifests (.jsonl), for the figure weights"
    )
    parser.add_argument("--no-peers", action="store_true", help="only nemostream")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write benchmarks.md and .png there")
    arguments = parser.parse_args()
    if unknown := set(arguments.figures) - set(FIGURES):
        parser.error(f"there is no figure {sorted(unknown)[0]!r}; the figures are {', '.join(FIGURES)}")
    # before any library starts a pool: waiting threads sleep, ours and everyone's that has a switch
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
        tuple(arguments.recordings),
    )
    if arguments.quick:
        plan = Plan(folders, 3.0, 10.0, (1,), (320,), 1, plan.peers, 40, plan.recordings, most_streams=8)
    kept: dict[str, Any] = {"rows": [], "runs": {}}
    if arguments.results.is_file():
        kept = json.loads(arguments.results.read_text())
    kept["machine"] = machine()
    for name in arguments.figures or FIGURES:
        if not (arguments.resume and name in kept["runs"]):
            _measure(name, plan, kept, arguments.results)
    if arguments.report is not None:
        write_report(kept, arguments.report)


def _measure(name: str, plan: Plan, kept: dict[str, Any], results: Path) -> None:
    """One figure: its rows replace the old ones, and its load and duration are noted when it is complete."""
    print(f"{name}: load average {os.getloadavg()[0]:.1f}", flush=True)
    began, before = time.perf_counter(), os.getloadavg()[0]
    kept["runs"].pop(name, None)
    kept["rows"] = [row for row in kept["rows"] if row["figure"] != name]
    for row in FIGURES[name](plan):
        print(f"{row.figure:8} {row.system:30} {row.setting:60} {row.value:10.3f} {row.unit}", flush=True)
        kept["rows"].append(dataclasses.asdict(row))
        results.write_text(json.dumps(kept, indent=1))
    kept["runs"][name] = {
        "seconds": round(time.perf_counter() - began),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
    }
    results.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
