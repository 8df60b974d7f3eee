"""What goes to standard error: one line a message, so that scripts can read it too."""

from __future__ import annotations

import sys
import traceback

from nemostream.errors import NemostreamError


def report_error(message: str) -> None:
    """Print ``nemostream: error: message``."""
    _line("error: " + message)


def report_warning(message: str) -> None:
    """Print ``nemostream: warning: message``."""
    _line("warning: " + message)


def report_note(message: str) -> None:
    """Print ``nemostream: message``."""
    _line(message)


def report_exception(error: Exception, verbose: bool, about: str = "") -> None:
    """Print one line for an exception, and in verbose mode its traceback before that.

    Args:
        error: what happened; anything but a `NemostreamError` or `OSError` is a fault of the program.
        verbose: True for the traceback.
        about: the file that it happened with, if the message does not say so itself.
    """
    if verbose:
        traceback.print_exception(error)
    message = str(error)
    if isinstance(error, OSError) and not isinstance(error, NemostreamError):
        name = f"{error.filename}: " if error.filename else ""
        message = f"{name}{error.strerror or error}."
    elif not isinstance(error, NemostreamError):
        hint = "" if verbose else "; run it with --verbose, and report what it prints"
        message = f"unexpected {type(error).__name__}: {message}{hint}."
    if about and about not in message:
        message = f"{about}: {message}"
    report_error(message)


def _line(message: str) -> None:
    print("nemostream: " + " ".join(message.split()), file=sys.stderr, flush=True)
