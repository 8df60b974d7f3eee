"""A progress bar on standard error, for people: never in a pipe or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[float, float | None], None]


@contextmanager
def progress_bar(name: str, quiet: bool) -> Iterator[Progress | None]:
    """Show a bar while the body runs, and give it a callback ``(seconds done, seconds in all or None)``.

    The callback is None if nothing is to be shown: when ``quiet``, or standard error is not a terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    # standard output is left alone: it may be a file, and the bar is gone before anything is printed there
    with Bar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
