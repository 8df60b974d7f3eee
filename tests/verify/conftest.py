"""The command line, run in this process."""

from tests.cli.conftest import run

__all__ = ["run"]
