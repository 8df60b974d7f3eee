"""Options for how a stream is decoded and cut into utterances, of ``transcribe``, ``listen`` and ``eval``."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemostream.cli.model_options import positive
from nemostream.errors import NemostreamError

if TYPE_CHECKING:
    from nemostream.engine.utterances import Itn

PHRASE_FILE = "@"


def add_decoding_options(
    parser: argparse.ArgumentParser, *, confidence: str, endpoint: bool = True
) -> argparse._ArgumentGroup:
    """Add what `decoding_options` reads, and return the group.

    Args:
        parser: of the command.
        confidence: help of ``--confidence``.
        endpoint: False for a command that looks for utterances in any case.
    """
    group = parser.add_argument_group("decoding (see docs/decoding.md)")
    group.add_argument(
        "--boost",
        action="append",
        default=[],
        metavar=f"PHRASE|{PHRASE_FILE}FILE",
        help="favour a phrase, or those of a text file, one a line; may be repeated",
    )
    group.add_argument(
        "--boost-score", type=float, metavar="X", help="how much: above 0, at most 10; default: 1"
    )
    group.add_argument(
        "--beam", type=positive, metavar="N", help="search among N hypotheses; default: 1, which is greedy"
    )
    group.add_argument("--confidence", action="store_true", help=confidence)
    if endpoint:
        group.add_argument("--endpoint", action="store_true", help="cut the text into utterances at pauses")
        group.add_argument(
            "--vad", action="store_true", help="the same, and silero-vad says where a pause is (extra vad)"
        )
    group.add_argument(
        "--itn",
        metavar="MODULE:FUNCTION",
        help="rewrite every utterance's text by a Python function of text and language",
    )
    return group


def check_decoding_usage(arguments: argparse.Namespace) -> None:
    """Stop with a usage error if options make no sense together."""
    from nemostream.decoding.beam import MOST_HYPOTHESES
    from nemostream.decoding.boosting import MOST_BOOST

    error = arguments.parser.error
    if arguments.boost_score is not None:
        if not arguments.boost:
            error("--boost-score says how much --boost favours, which has to be given as well")
        if not 0 < arguments.boost_score <= MOST_BOOST:
            error(f"--boost-score {arguments.boost_score:g}: above 0 and at most {MOST_BOOST:g} was expected")
    if not all(phrase.strip() for phrase in arguments.boost):
        error("--boost has an empty phrase")
    if arguments.beam is not None and arguments.beam > MOST_HYPOTHESES:
        error(f"--beam {arguments.beam}: at most {MOST_HYPOTHESES} was expected")
    if arguments.itn is not None and not all(arguments.itn.partition(":")):
        error(f"--itn {arguments.itn}: MODULE:FUNCTION was expected, such as my_rules:rewrite")


def decoding_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Model.stream` that stand for the options; none for what was not asked.

    Raises:
        NemostreamError: if a file of phrases or the function cannot be read.
    """
    options: dict[str, Any] = {}
    if arguments.boost:
        options["boost"] = boosted_phrases(arguments)
    if arguments.boost_score is not None:
        options["boost_score"] = arguments.boost_score
    if arguments.beam is not None:
        options["beam"] = arguments.beam
    if arguments.confidence:
        options["confidence"] = True
    if getattr(arguments, "endpoint", False):
        options["endpoint"] = True
    if getattr(arguments, "vad", False):
        from nemostream.decoding.endpoint import Endpoint

        options["endpoint"] = Endpoint(vad=True)
    if arguments.itn is not None:
        options["itn"] = _function(arguments.itn)
    return options


def boosted_phrases(arguments: argparse.Namespace) -> list[str]:
    """All phrases of ``--boost``, those of files among them.

    Raises:
        NemostreamError: if a file cannot be read or has no phrases.
    """
    phrases: list[str] = []
    for given in arguments.boost:
        if not given.startswith(PHRASE_FILE):
            phrases.append(given)
            continue
        path = Path(given.removeprefix(PHRASE_FILE))
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise NemostreamError(
                f"--boost {given}: the phrases cannot be read ({getattr(error, 'strerror', None) or error})."
            ) from error
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise NemostreamError(f"--boost {given}: the file has no phrases; one a line was expected.")
        phrases += found
    return phrases


def _function(name: str) -> Itn:
    """Import ``module:function``, from the current folder too, as ``python -m`` does."""
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise NemostreamError(f"--itn {name} cannot be imported ({error}).") from error
    if not callable(function):
        raise NemostreamError(f"--itn {name} is not a function of text and language.")

    def rewrite(text: str, language: str | None) -> str:
        try:
            written = function(text, language)
        except Exception as error:
            raise NemostreamError(
                f"--itn {name} failed on {text[:60]!r} ({type(error).__name__}: {error})."
            ) from error
        if not isinstance(written, str):
            raise NemostreamError(f"--itn {name} returned {type(written).__name__}; a text was expected.")
        return written

    return rewrite
