"""``nemostream convert``: a checkpoint to a bundle of another runtime."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nemostream.cli.messages import report_note
from nemostream.cli.transcribe import LATENCIES, latency

if TYPE_CHECKING:
    from nemostream.checkpoints import Checkpoint


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
    parser.add_argument(
        "--to",
        choices=("onnx", "sherpa", "mlx"),
        required=True,
        help="onnx: a bundle for ONNX Runtime; sherpa: what sherpa-onnx loads; mlx: safetensors for MLX",
    )
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
        "--latency",
        type=latency,
        metavar="|".join(map(str, LATENCIES)),
        help="of a sherpa export, which has one; default: the model's",
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
    if arguments.latency is not None and arguments.to != "sherpa":
        arguments.parser.error("--latency is for --to sherpa; other bundles run at every latency")
    allowed = WEIGHTS[arguments.to]
    if arguments.weights not in allowed:
        arguments.parser.error(f"--to {arguments.to} stores weights as {' or '.join(allowed)} only")
    from nemostream.checkpoints import load_checkpoint
    from nemostream.errors import BackendError

    checkpoint = load_checkpoint(arguments.checkpoint, revision=arguments.revision)
    try:
        _CONVERTERS[arguments.to](checkpoint, arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("nemostream"):
            raise
        raise BackendError(
            f"Converting needs the package {error.name}; run: pip install 'nemostream[export]'."
        ) from error
    return 0


def _to_onnx(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    from nemostream.export.onnx import export_onnx
    from nemostream.loading import embedded_clip
    from nemostream.runtimes.torch import load_network

    folder: Path = arguments.output
    source, revision = _source(checkpoint, arguments)
    export_onnx(
        load_network(checkpoint),
        checkpoint.tokenizer,
        folder,
        source=source,
        source_revision=revision,
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


def _to_sherpa(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    from nemostream.export.sherpa import export_sherpa
    from nemostream.runtimes.torch import load_network

    config = checkpoint.config
    context = config.default_att_context
    if arguments.latency is not None:
        context = config.context_for_latency(arguments.latency)
    source, revision = _source(checkpoint, arguments)
    export_sherpa(
        load_network(checkpoint),
        checkpoint.tokenizer,
        arguments.output,
        source=source,
        source_revision=revision,
        att_context=context,
    )
    if not arguments.quiet:
        report_note(f"{arguments.output} is ready for sherpa_onnx.OnlineRecognizer.from_transducer.")


def _to_mlx(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    from nemostream.checkpoints.mlx_style import save_mlx_style

    folder: Path = arguments.output
    save_mlx_style(checkpoint, folder, "float16" if arguments.weights == "fp16" else "float32")
    if not arguments.quiet:
        report_note(f"{folder} is ready: nemostream transcribe --backend mlx --model {folder} FILE")


def _source(checkpoint: Checkpoint, arguments: argparse.Namespace) -> tuple[str, str | None]:
    """Where the weights came from: a path, or a hub id and its revision."""
    if Path(arguments.checkpoint).expanduser().exists():
        return checkpoint.source, None
    source, _, revision = checkpoint.source.partition("@")
    return source, revision or None


WEIGHTS = {"onnx": ("fp32", "fp16", "int8", "int4"), "sherpa": ("fp32",), "mlx": ("fp32", "fp16")}
_CONVERTERS = {"onnx": _to_onnx, "sherpa": _to_sherpa, "mlx": _to_mlx}
