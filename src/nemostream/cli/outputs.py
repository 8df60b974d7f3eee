"""Where results go: standard output, or files in a folder whose names never clash."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from nemostream.cli.messages import report_note
from nemostream.errors import NemostreamError
from nemostream.text.writers import WRITERS, Recognition


@dataclass(frozen=True)
class Output:
    """Writes the results of a command line.

    Attributes:
        formats: keys of `WRITERS`.
        stems: name of every input's output files, without suffix.
        folder: where to write files, or None for standard output.
        grows: True if the text of a live stream is printed while it grows.
        verbose: True to say what was written.
    """

    formats: tuple[str, ...]
    stems: tuple[str, ...]
    folder: Path | None
    grows: bool
    verbose: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Read the arguments, and make the folder, so that a wrong one is noticed before the work.

        Raises:
            NemostreamError: if the folder cannot be made.
        """
        folder: Path | None = arguments.output_dir
        stems = unique_stems(arguments.files)
        if folder is None and sys.stdout is None:
            raise NemostreamError("Standard output is closed; choose a folder to write to with -o.")
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise NemostreamError(
                    f"{folder}: the output folder cannot be made ({error.strerror}); choose another with -o."
                ) from error
            for name, stem in zip(arguments.files, stems, strict=True):
                if stem != _stem(name) and not arguments.quiet:
                    report_note(
                        f"{name} is written as {stem}.*, because another input has the name {_stem(name)}."
                    )
        return cls(
            formats=tuple(WRITERS) if arguments.format == "all" else (arguments.format,),
            stems=stems,
            folder=folder,
            grows=folder is None
            and arguments.format == "txt"
            and arguments.channels != "split"
            and sys.stdout.isatty(),
            verbose=arguments.verbose,
        )

    def write(self, recognition: Recognition, place: int) -> None:
        """Write or print the result of the input number ``place``.

        Raises:
            NemostreamError: if a file, or standard output, cannot be written.
            BrokenPipeError: if nobody reads standard output any more.
        """
        recognition = replace(recognition, file=_printable(recognition.file))
        if self.folder is None:
            self._print(recognition)
            return
        for name in self.formats:
            path = self.folder / f"{self.stems[place]}.{name}"
            try:
                path.write_text(WRITERS[name](recognition), encoding="utf-8", newline="\n")
            except OSError as error:
                raise NemostreamError(f"{path}: the result cannot be written ({error.strerror}).") from error
            if self.verbose:
                report_note(f"{path} written.")

    def _print(self, recognition: Recognition) -> None:
        (name,) = self.formats
        text = WRITERS[name](recognition)
        if self.grows and recognition.file == "-":
            text = "\n"
        elif name == "txt" and len(self.stems) > 1:
            text = "".join(f"{recognition.file}: {line}\n" for line in text.splitlines())
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise NemostreamError(f"Standard output cannot be written ({error.strerror}).") from error


def unique_stems(names: Sequence[str]) -> tuple[str, ...]:
    """Return the stem of every file name, later ones of an equal stem with ``-2``, ``-3`` ... added.

    Stems that differ in case only count as equal, as they do for the file systems of macOS and Windows.
    """
    wanted = {_stem(name).casefold() for name in names}
    taken: set[str] = set()
    stems = []
    for name in names:
        stem, number = _stem(name), 1
        while stem.casefold() in taken or (number > 1 and stem.casefold() in wanted):
            number += 1
            stem = f"{_stem(name)}-{number}"
        taken.add(stem.casefold())
        stems.append(stem)
    return tuple(stems)


def _stem(name: str) -> str:
    return "stdin" if name == "-" else Path(name).stem


def _printable(name: str) -> str:
    """Return a file name with ``?`` for bytes that are not text, which no output format could hold."""
    return name.encode("utf-8", "replace").decode("utf-8")
