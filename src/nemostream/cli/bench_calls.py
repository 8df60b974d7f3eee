"""``nemostream bench calls``: how many telephone calls does this machine hold?"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemostream.cli.messages import report_note
from nemostream.cli.model_options import positive

if TYPE_CHECKING:
    from nemostream.load_test.search import Level

_DESCRIPTION = """\
Make telephone calls to a server: 8 kHz mu-law in packets of 20 ms, in real time, from a process of its own
over real sockets. Each call says one recording after another with a pause between; when a recording ends,
the final text is asked for, and the time until it comes is the lag. One call alone comes first: its lag and
its texts are what the others are held against. Without --url the server is started here, and its CPU and
memory are watched.
"""


def add_calls(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the measurement to ``bench``."""
    parser = kinds.add_parser(
        "calls",
        help="telephone calls at once",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument("recordings", nargs="*", type=Path, metavar="FILE", help="default: the embedded clip")
    parser.add_argument("-m", "--model", default="tiny", help="of the server that is started; default: tiny")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads of that server")
    parser.add_argument("--url", help="of a server that runs, ws://HOST:PORT")
    parser.add_argument("--api-key", help="for that server")
    parser.add_argument("-l", "--language", help="of the calls")
    parser.add_argument("--latency", type=int, metavar="MS", help="of the calls")
    parser.add_argument(
        "--calls",
        type=positive,
        nargs="+",
        metavar="N",
        help="these numbers; default: search for the largest that holds",
    )
    parser.add_argument("--most", type=positive, default=512, metavar="N", help="of the search; default: 512")
    parser.add_argument("--seconds", type=seconds, default=30.0, help="of each call, at least; default: 30")
    parser.add_argument("--pause", type=seconds, default=1.0, help="seconds of silence between; default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the levels there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them, as PNG or SVG")
    parser.set_defaults(run=run, parser=parser)


def seconds(text: str) -> float:
    """Read a length of time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code is 0 whatever was found, since any number is an answer."""
    from nemostream.checkpoints.files import optional_module

    optional_module("websockets", "serve", "Making calls")
    from nemostream.load_test.generate import Plan
    from nemostream.load_test.report import plot, to_markdown
    from nemostream.load_test.search import LoadTest, find_largest
    from nemostream.load_test.server import Server, free_port, http_ready
    from nemostream.loading import embedded_clip

    options = {"language": arguments.language, "latency": arguments.latency}
    plan = Plan(
        url=arguments.url or f"ws://127.0.0.1:{free_port()}",
        recordings=tuple(str(path) for path in arguments.recordings or [embedded_clip()]),
        calls=1,
        seconds=arguments.seconds,
        pause=arguments.pause,
        options=tuple((key, str(value)) for key, value in options.items() if value is not None),
        api_key=arguments.api_key,
    )

    def report(level: Level) -> None:
        if not arguments.quiet:
            report_note(f"{level.calls} calls: lag p95 {level.lag[1]:.0f} ms, {level.mismatches} mismatches")

    def measure(test: LoadTest) -> tuple[list[Level], int]:
        if arguments.calls is None:
            return find_largest(test, arguments.most, report)
        levels = [test.alone()]
        levels += [test.level(calls) for calls in sorted(set(arguments.calls)) if calls > 1]
        return levels, max(level.calls for level in levels if level.holds(levels[0]))

    if arguments.url is not None:
        levels, largest = measure(LoadTest(plan))
    else:
        port = plan.url.rpartition(":")[2]
        most = max(arguments.calls or [arguments.most])
        command = [sys.executable, "-m", "nemostream.cli.main", "serve", "--port", port, "--slots", str(most)]
        command += ["--model", arguments.model]
        if arguments.threads is not None:
            command += ["--threads", str(arguments.threads)]
        with Server(command, http_ready(f"http://127.0.0.1:{port}/readyz")) as server:
            levels, largest = measure(LoadTest(plan, pid=server.pid))
    print(to_markdown(levels), end="")
    print(f"\n{largest} calls hold.")
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps([level.to_json() for level in levels], indent=1), encoding="utf-8"
        )
    if arguments.plot is not None:
        plot({arguments.model: levels}, arguments.plot)
    return 0
