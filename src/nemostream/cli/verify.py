"""``nemostream verify``: a bundle against the checkpoint it was made from, stage by stage."""

from __future__ import annotations

import argparse
import json

from nemostream.cli.messages import report_note
from nemostream.errors import BackendError

EXIT_DIVERGES = 8
_WIDTH = 120  # columns, in a pipe too

_DESCRIPTION = """\
Run a bundle and the checkpoint that it was made from side by side, and compare every stage: features,
pre-encoder, every layer, prompt, projection, runtime, predictor, joint, tokens, tokenizer, text. The first
stage that differs is the one that is wrong. This needs `pip install 'nemostream[export]'`.

exit codes: 0 they agree; 8 they differ; others as everywhere (see `nemostream --help`).
"""


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "verify",
        help="compare a bundle with its checkpoint, stage by stage",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle of any runtime, or a checkpoint (PyTorch)")
    parser.add_argument(
        "--against", required=True, metavar="CHECKPOINT", help="hub id, .nemo file, or folder"
    )
    parser.add_argument("--audio", nargs="+", default=[], metavar="FILE", help="default: a built-in sound")
    parser.add_argument(
        "--seconds", type=_above_zero, default=12.0, help="most of each clip to use; default: 12"
    )
    parser.add_argument("-l", "--language", help="for the prompt; default: the model's")
    parser.add_argument(
        "--att-context",
        type=int,
        nargs=2,
        action="append",
        metavar=("L", "R"),
        help="context to run, may be repeated; default: all that the model was trained with",
    )
    parser.add_argument(
        "--tolerance", type=_above_zero, help="limit of numeric differences instead of the usual"
    )
    parser.add_argument("--backend", help="runtime of the bundle, if it has several")
    parser.add_argument(
        "--activations",
        choices=("fp16", "fp32"),
        help="of the backend mil: round to fp16 or not; default: fp16",
    )
    parser.add_argument("--layers", action="store_true", help="show every stage inside every layer")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, and return 0 or `EXIT_DIVERGES`."""
    try:
        from nemostream.checkpoints import load_checkpoint
        from nemostream.loading import EMBEDDED_MODEL, embedded_bundle, embedded_checkpoint
        from nemostream.verify.check import verify
        from nemostream.verify.clips import clips_for
        from nemostream.verify.ports import open_port
        from nemostream.verify.table import report_table, summary
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("nemostream"):
            raise
        raise BackendError(
            f"Verifying needs the package {error.name}; run: pip install 'nemostream[export]'."
        ) from error
    clips = clips_for(arguments.audio, arguments.seconds)
    embedded = {EMBEDDED_MODEL: str(embedded_checkpoint())}
    checkpoint = load_checkpoint(embedded.get(arguments.against, arguments.against))
    if arguments.backend in (None, "onnx"):
        embedded = {EMBEDDED_MODEL: str(embedded_bundle())}
    port = open_port(
        embedded.get(arguments.bundle, arguments.bundle),
        backend=arguments.backend,
        activations=arguments.activations,
    )
    contexts = [checkpoint.config.resolve_att_context(pair) for pair in arguments.att_context or []]
    report = verify(
        port,
        checkpoint,
        clips,
        contexts=contexts or None,
        language=arguments.language,
        tolerance=arguments.tolerance,
    )
    if arguments.json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        from rich.console import Console

        Console(width=_WIDTH).print(report_table(report, layers=arguments.layers))
    if not arguments.quiet or not report.passed:
        report_note(summary(report))
    return 0 if report.passed else EXIT_DIVERGES


def _above_zero(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
