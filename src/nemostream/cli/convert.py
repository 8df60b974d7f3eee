"""``nemostream convert``: a checkpoint to a bundle of another runtime."""

from __future__ import annotations

import argparse
from pathlib import Path

from nemostream.cli.messages import report_note


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "convert",
        help="convert a checkpoint to a bundle for another runtime",
        description="Convert a checkpoint to a folder that another runtime loads; "
        "this needs `pip install 'nemostream[export]'`.",
        parents=[common],
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="hub id, .nemo file, or Hugging Face or MLX folder"
    )
    parser.add_argument("--to", choices=("onnx",), required=True, help="the runtime")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="new or empty folder"
    )
    parser.add_argument(
        "--weights",
        choices=("fp32", "fp16", "int8", "int4"),
        default="fp32",
        help="how matrices are stored: int8 is fastest and a quarter of the size; default: fp32",
    )
    parser.add_argument(
        "--measure-on",
        type=Path,
        metavar="FILE",
        help="recording with which the cost of smaller weights is measured, for the manifest; "
        "default: the clip in this package",
    )
    parser.add_argument("--revision", help="commit of a hub id")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what to do with the result."""
    folder: Path = arguments.output
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        arguments.parser.error(f"{folder} is not an empty folder; choose another with -o")
    from nemostream.checkpoints import load_checkpoint
    from nemostream.errors import BackendError
    from nemostream.loading import embedded_clip

    checkpoint = load_checkpoint(arguments.checkpoint, revision=arguments.revision)
    try:
        from nemostream.export.onnx import export_onnx
        from nemostream.runtimes.torch import load_network
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("nemostream"):
            raise
        raise BackendError(
            f"Converting needs the package {error.name}; run: pip install 'nemostream[export]'."
        ) from error
    source, revision = checkpoint.source, None
    if not Path(arguments.checkpoint).expanduser().exists():  # a hub id
        source, _, revision = source.partition("@")
    export_onnx(
        load_network(checkpoint),
        checkpoint.tokenizer,
        folder,
        source=source,
        source_revision=revision or None,
        weights=arguments.weights,
    )
    recording: Path = arguments.measure_on or embedded_clip()
    if arguments.measure_on or (arguments.weights != "fp32" and recording.is_file()):
        from nemostream.export.measure import record_error

        measured = record_error(folder, checkpoint, recording).measured
        if not arguments.quiet:
            report_note(f"Against fp32: {measured}.")
    if not arguments.quiet:
        report_note(f"{folder} is ready: nemostream transcribe --model {folder} FILE")
    return 0
