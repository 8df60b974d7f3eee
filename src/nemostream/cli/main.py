"""The command ``nemostream``: reads the arguments, runs a command, and says in one sentence why it failed."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TextIO

from nemostream import __version__
from nemostream.cli import bench, convert, doctor, inspect, listen, models, serve, transcribe, verify
from nemostream.cli import eval as evaluation
from nemostream.cli.messages import report_error, report_exception, report_warning
from nemostream.errors import NemostreamError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

_EPILOG = """\
exit codes: 0 all done; 1 another error; 2 wrong usage; 3 audio; 4 model files; 5 context or latency;
6 language; 7 runtime; 8 verify: they differ; 130 interrupted. If several files fail, it is the code of the
first.
"""


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, as all other errors."""

    def error(self, message: str) -> NoReturn:
        report_error(f"{message} (see `{self.prog} --help`).")
        raise SystemExit(EXIT_USAGE)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; each sets ``run``, a function from the arguments to an exit code."""
    parser = _Parser(
        prog="nemostream",
        description="Streaming speech recognition with NVIDIA's Nemotron models, on any runtime.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"nemostream {__version__}")
    common = _Parser(add_help=False)
    volume = common.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help="no progress and no warnings, only errors")
    volume.add_argument("-v", "--verbose", action="store_true", help="say more, and give tracebacks")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (transcribe, listen, serve, models, inspect, convert, verify, evaluation, bench, doctor):
        command.add_parser(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None means the process's own) and return the exit code."""
    if sys.stderr is None:  # closed: print() would put the messages among the results
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    _use_utf8(sys.stdout, sys.stderr)
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as stop:  # --help, --version, wrong usage
        return int(stop.code or 0)
    try:
        with _warnings_as_lines(arguments.quiet):
            code: int = arguments.run(arguments)
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
        return code
    except SystemExit as stop:  # wrong usage that only the command could see
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # whoever reads the output has enough; Python's own flush at exit would complain about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if _began_with_interrupt(error):
            return EXIT_INTERRUPTED
        report_exception(error, arguments.verbose)
        return error.exit_code if isinstance(error, NemostreamError) else NemostreamError.exit_code


def _began_with_interrupt(error: BaseException | None) -> bool:
    """Ctrl-C while a package is imported may come out as its ImportError."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _warnings_as_lines(quiet: bool) -> Iterator[None]:
    """Print each of our own warnings once, as one line; those of other packages are not for users."""
    said: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if category is UserWarning and str(message) not in said:
            said.add(str(message))
            report_warning(str(message))

    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        else:
            warnings.showwarning = show
        yield


def _use_utf8(*streams: TextIO) -> None:
    """Write UTF-8 to files and pipes whatever the locale, and never fail on a character."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            if stream.isatty():
                stream.reconfigure(errors="replace")
            else:
                stream.reconfigure(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    sys.exit(main())
